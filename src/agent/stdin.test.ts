/** Standard input of commands, passed on by the real agent: byte exact, bounded, and kept over connections. */
import assert from "node:assert/strict";
import { createHash, randomBytes, randomInt } from "node:crypto";
import { readdir, writeFile } from "node:fs/promises";
import { after, before, describe, it } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import { FakeGuest } from "../../test/fakes/fake-guest.ts";
import { Transcript } from "../../test/fakes/transcript.ts";
import { waitFor, within } from "../../test/wait-for.ts";
import type { Agent, Command, CommandStream, InputSink, ProcessInput, Selector } from "./agent.ts";
import { connectAgent } from "./connection.ts";
import { AgentFailure } from "./failure.ts";
import { FrameType } from "./frames.ts";
import { limits, Verb } from "./protocol.ts";

let guest: AgentProcess;
let agent: Agent;

before(async () => {
  guest = await AgentProcess.start();
  agent = await guest.connect();
  await guest.wake(agent);
});
after(() => guest[Symbol.asyncDispose]());

const stdin = true;
const mib = 1024 * 1024;
/** The kernel's size of a pipe. */
const pipeBytes = 65_536;

function shell(script: string): Command {
  return { cmd: "/bin/sh", args: ["-c", script], cwd: guest.dir, stdin };
}

function run(command: Command): { transcript: Transcript; stream: CommandStream } {
  const transcript = new Transcript();
  return { transcript, stream: transcript.of(agent.run(command, transcript)) };
}

function sha256(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}

/** Writes the parts, each when the one before is taken. */
async function writeAll(stream: Pick<CommandStream, "write" | "onDrain">, parts: Iterable<Uint8Array>): Promise<void> {
  for (const part of parts) {
    const drained = new Promise<void>((resolve) => stream.onDrain(resolve));
    if (!stream.write(part)) await within("the input is taken", drained);
  }
}

function* partsOf(bytes: Buffer, size: () => number): Generator<Buffer> {
  for (let at = 0; at < bytes.length; ) {
    const length = size();
    yield bytes.subarray(at, at + length);
    at += length;
  }
}

class Writer implements InputSink {
  readonly isOpen = Promise.withResolvers<void>();
  readonly hasEnded = Promise.withResolvers<void>();
  readonly input: ProcessInput;

  constructor(on: Agent, selector: Selector) {
    for (const each of [this.isOpen, this.hasEnded]) each.promise.catch(() => {});
    this.input = on.input(selector, this);
  }

  opened(): void {
    this.isOpen.resolve();
  }

  ended(): void {
    this.hasEnded.resolve();
  }

  failed(error: Error): void {
    this.isOpen.reject(error);
    this.hasEnded.reject(error);
  }
}

function failsWith(failure: AgentFailure["failure"]): (error: unknown) => boolean {
  return (error) => error instanceof AgentFailure && error.failure === failure;
}

describe("a foreground command with standard input", () => {
  it("reads input of any size unchanged, to its end", async () => {
    const content = randomBytes(5 * mib);
    const borders = [4_096, pipeBytes, 131_072, limits.windowBytes, mib].flatMap((size) => [size - 1, size, size + 1]);
    const sizes = [0, 1, 2, ...borders, content.length, ...Array.from({ length: 40 }, () => randomInt(2 * mib))];
    const next = sizes[Symbol.iterator]();
    const worker = async () => {
      for (const size of next) {
        const bytes = content.subarray(0, size);
        const { transcript, stream } = run({ cmd: "sha256sum", args: [], stdin });
        await writeAll(stream, size % 2 === 0 ? [bytes] : partsOf(bytes, () => randomInt(1, 100_000)));
        stream.endInput();
        assert.equal((await transcript.exit()).exitCode, 0);
        assert.equal(transcript.text("stdout"), `${sha256(bytes)}  -\n`, `${size} bytes`);
      }
    };
    await Promise.all([worker(), worker(), worker()]);
  });

  it("reads and writes at the same time", async () => {
    const content = randomBytes(3 * mib);
    const { transcript, stream } = run({ cmd: "cat", args: [], stdin });
    await writeAll(
      stream,
      partsOf(content, () => 50_000),
    );
    stream.endInput();
    await transcript.exit();
    assert.ok(transcript.bytes("stdout").equals(content));
  });

  it("is sent no more than one window while it does not read, and misses none of it", async () => {
    const { transcript, stream } = run(shell("echo started; while [ ! -e read ]; do sleep 0.02; done; sha256sum"));
    await transcript.process.promise;
    const content = randomBytes(2 * mib);
    let isDrained = false;
    stream.onDrain(() => {
      isDrained = true;
    });
    assert.equal(stream.write(content), false);
    await agent.probe(); // an answer behind all frames that the input could be sent in
    assert.equal(isDrained, false);
    stream.endInput();
    await writeFile(guest.file("read"), "");
    await transcript.exit();
    assert.ok(transcript.text("stdout").includes(sha256(content)));
    assert.equal(isDrained, true);
  });

  it("that closes its input runs on, and what it is sent is thrown away", async () => {
    const { transcript, stream } = run(
      shell("exec <&-; echo closed; while [ ! -e closed ]; do sleep 0.02; done; exit 7"),
    );
    await transcript.until((it) => it.text("stdout").includes("closed"));
    await writeAll(stream, Array(40).fill(Buffer.alloc(200_000)));
    await writeFile(guest.file("closed"), "");
    assert.equal((await transcript.exit()).exitCode, 7);
  });

  it("ends without reading", async () => {
    const { transcript, stream } = run({ cmd: "true", args: [], stdin });
    stream.write(Buffer.alloc(3 * mib));
    stream.endInput();
    assert.equal((await transcript.exit()).exitCode, 0);
  });

  it("leaves no descriptors behind", async () => {
    const open = async () => (await readdir(`/proc/${guest.process.pid}/fd`)).length;
    await run({ cmd: "true", args: [], stdin }).transcript.exit();
    const before = await open();
    for (let i = 0; i < 20; i++) {
      const { transcript, stream } = run({ cmd: i % 2 === 0 ? "cat" : "true", args: [], stdin });
      stream.endInput();
      await transcript.exit();
    }
    await waitFor("no more than before", async () => (await open()) <= before);
  });

  it("that does not exist is refused", async () => {
    const { transcript, stream } = run({ cmd: "no-such-command-here", args: [], stdin });
    stream.write(Buffer.from("x"));
    stream.endInput();
    await assert.rejects(transcript.exit(), failsWith("command_not_found"));
  });
});

describe("a background process with standard input", () => {
  function attach(on: Agent, selector: Selector): Transcript {
    const transcript = new Transcript();
    transcript.of(on.attach(selector, transcript));
    return transcript;
  }

  it("reads what its clients write, in order, until one ends it", async () => {
    const { tag } = await agent.start({ cmd: "cat", args: [], stdin });
    const output = attach(agent, { tag });
    const [first, second] = [new Writer(agent, { tag }), new Writer(agent, { tag })];
    first.input.write(Buffer.from("one "));
    await output.until((it) => it.text("stdout") === "one ");
    second.input.write(Buffer.from("two "));
    await output.until((it) => it.text("stdout") === "one two ");
    first.input.release();
    second.input.write(Buffer.from("three"));
    second.input.endInput();
    await within("the end is told", second.hasEnded.promise);
    assert.equal((await output.exit()).exitCode, 0);
    assert.equal(output.text("stdout"), "one two three");
  });

  it("keeps its input open, and what waits for it, when the host is another one", async () => {
    const tag = "kept-open";
    await agent.start({ ...shell("while [ ! -e kept ]; do sleep 0.02; done; sha256sum"), tag });
    const content = randomBytes(limits.windowBytes + 3_000);
    const early = new Writer(agent, { tag });
    assert.equal(early.input.write(content.subarray(0, limits.windowBytes)), true);
    await within("it is open", early.isOpen.promise);
    await agent.probe();
    agent.close();
    agent = await guest.connect();
    const output = attach(agent, { tag });
    await output.process.promise;
    await writeFile(guest.file("kept"), "");
    const late = new Writer(agent, { tag });
    late.input.write(content.subarray(limits.windowBytes));
    late.input.endInput();
    await output.exit();
    assert.equal(output.text("stdout"), `${sha256(content)}  -\n`);
  });

  it("gets what a client wrote before it left", async () => {
    const tag = "left-behind";
    await agent.start({ ...shell("while [ ! -e left ]; do sleep 0.02; done; sha256sum"), tag });
    const output = attach(agent, { tag });
    const content = randomBytes(mib);
    const writer = new Writer(agent, { tag });
    assert.equal(writer.input.write(content), false);
    writer.input.endInput();
    writer.input.release();
    await writeFile(guest.file("left"), "");
    await output.exit();
    assert.equal(output.text("stdout"), `${sha256(content)}  -\n`);
  });

  it("ends with its writers told", async () => {
    const { pid } = await agent.start({ cmd: "sleep", args: ["300"], stdin });
    const writer = new Writer(agent, { pid });
    await within("it is open", writer.isOpen.promise);
    await agent.signal({ pid }, "SIGKILL");
    await within("the end is told", writer.hasEnded.promise);
    await assert.rejects(new Writer(agent, { pid }).isOpen.promise, failsWith("not_found"));
  });

  it("refuses a writer where no input is open", async () => {
    const without = await agent.start({ cmd: "sleep", args: ["300"] });
    const ended = await agent.start(shell("cat; sleep 300"));
    const writer = new Writer(agent, { pid: ended.pid });
    writer.input.endInput();
    await within("the end is told", writer.hasEnded.promise);
    for (const { pid } of [without, ended]) {
      const refused = new Writer(agent, { pid });
      refused.input.write(Buffer.from("x"));
      await assert.rejects(refused.isOpen.promise, failsWith("conflict"));
      await agent.signal({ pid }, "SIGKILL");
    }
    await assert.rejects(new Writer(agent, { tag: "no-such-tag" }).isOpen.promise, failsWith("not_found"));
  });
});

it("a command without standard input is the one frame that it always was", async () => {
  await using fake = await FakeGuest.listen();
  const host = await connectAgent(fake.socketPath, { deadlineMs: 60_000 });
  host.run({ cmd: "true", args: [] }, new Transcript());
  host.run({ cmd: "true", args: [], stdin }, new Transcript());
  host.start({ cmd: "true", args: [] }).catch(() => {});
  await waitFor("three frames", () => fake.frames.length === 3);
  const verbs = fake.frames.map(({ type, payload }) => (type === FrameType.OPEN ? payload.readUInt16LE() : -type));
  assert.deepEqual(verbs, [Verb.EXEC, Verb.EXEC_STDIN, Verb.EXEC]);
  host.close();
});

it("an agent of an earlier release refuses standard input with what to do, and nothing is sent", async () => {
  await using fake = await FakeGuest.listen({ verbs: null });
  const host = await connectAgent(fake.socketPath, { deadlineMs: 60_000 });
  const conflict = {
    code: "conflict",
    message: /earlier release, which has no verb (EXEC_STDIN|INPUT).*stop and start it/,
  };
  const transcript = new Transcript();
  transcript.of(host.run({ cmd: "cat", args: [], stdin }, transcript));
  await assert.rejects(transcript.exit(), conflict);
  await assert.rejects(host.start({ cmd: "cat", args: [], stdin }), conflict);
  await assert.rejects(new Writer(host, { pid: 5 }).hasEnded.promise, conflict);
  assert.equal(fake.frames.length, 0);
  host.close();
});
