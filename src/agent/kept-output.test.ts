/** Output of background processes that the real agent keeps. */
import assert from "node:assert/strict";
import { randomInt } from "node:crypto";
import { writeFile } from "node:fs/promises";
import type { Readable } from "node:stream";
import { buffer } from "node:stream/consumers";
import { after, before, describe, it } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import { Transcript } from "../../test/fakes/transcript.ts";
import { waitFor, within } from "../../test/wait-for.ts";
import type { Agent, Command, LogsRequest, OutputStart, RunningStream, Selector } from "./agent.ts";
import { AgentFailure } from "./failure.ts";
import { guestLimits } from "./guest-limits.ts";

let guest: AgentProcess;
let agent: Agent;

before(async () => {
  guest = await AgentProcess.start(["--kept", `${8 * 1024 * 1024}`]);
  agent = await guest.connect();
  await guest.wake(agent);
});
after(() => guest[Symbol.asyncDispose]());

const keptMax = guestLimits.keptOutputBytes;
const seed = Number(process.env.CAPSULE_TEST_SEED ?? randomInt(2 ** 31));

/** Numbers of 0 to below 1 that the seed repeats. */
function* numbers(from: number): Generator<number, never> {
  for (let state = from >>> 0; ; ) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    yield state / 2 ** 32;
  }
}

function shell(script: string): Command {
  return { cmd: "/bin/sh", args: ["-c", script], cwd: guest.dir };
}

function failsWith(failure: AgentFailure["failure"]): (error: unknown) => boolean {
  return (error) => error instanceof AgentFailure && error.failure === failure;
}

function attach(selector: Selector, start: OutputStart, options: { keepsCredit?: boolean } = {}) {
  const transcript = new Transcript(options);
  const stream: RunningStream = transcript.of(agent.attachFrom(selector, start, transcript));
  return { transcript, stream };
}

async function logs(selector: Selector, asked: Partial<LogsRequest> = {}) {
  const { body, ...head } = await agent.logs(selector, { stream: "both", ...asked });
  return { ...head, bytes: await textOf(body) };
}

async function textOf(body: Readable): Promise<Buffer> {
  return await within("the logs end", buffer(body));
}

/** A process that has printed this and ended. */
async function ended(script: string): Promise<{ pid: number; tag: string }> {
  const started = await agent.start(shell(script));
  await agent.exit(started);
  return started;
}

describe("kept output", () => {
  it("is read from the start after the end, with its exit and in the order of both streams", async () => {
    // Each part is read before the next one is written: of two streams with bytes none is known to be the first.
    const until = (file: string) => `until [ -e ${file} ]; do sleep 0.01; done`;
    const script = `printf one; ${until("after-one")}; printf oops >&2; ${until("after-oops")}; printf two; exit 7`;
    const { tag, pid } = await agent.start(shell(script));
    for (const [size, file] of [
      [3, "after-one"],
      [7, "after-oops"],
    ] as const) {
      await waitFor(`${size} bytes are kept`, async () => (await logs({ tag })).size === size);
      await writeFile(guest.file(file), "");
    }
    await agent.exit({ tag });
    for (const selector of [{ tag }, { pid }]) {
      const { transcript } = attach(selector, "start");
      assert.equal((await transcript.exit()).exitCode, 7);
      assert.equal(transcript.offset, 0);
      assert.deepEqual(
        transcript.order.map(([name, bytes]) => [name, bytes.toString()]),
        [
          ["stdout", "one"],
          ["stderr", "oops"],
          ["stdout", "two"],
        ],
      );
    }
    const rest = attach({ tag }, 5);
    await rest.transcript.exit();
    assert.deepEqual([rest.transcript.offset, rest.transcript.text("stderr")], [5, "ps"]);
    const none = attach({ tag }, 10);
    await none.transcript.exit();
    assert.deepEqual([none.transcript.offset, none.transcript.order.length], [10, 0]);
    await assert.rejects(attach({ tag }, 11).transcript.exit(), failsWith("invalid"));
    await assert.rejects(attach({ tag }, "now").transcript.exit(), failsWith("not_found"));
    await assert.rejects(attach({ tag: "no-such-tag" }, "start").transcript.exit(), failsWith("not_found"));
  });

  it("joins what is live without a gap", async () => {
    const { tag } = await agent.start(
      shell("seq 1 100000; until [ -e more ]; do sleep 0.01; done; seq 100001 200000; sleep 300"),
    );
    const early = attach({ tag }, "start");
    const all = Buffer.from(Array.from({ length: 200_000 }, (_, i) => `${i + 1}\n`).join(""));
    const half = all.indexOf("\n100001\n") + 1;
    await early.transcript.until((it) => it.bytes("stdout").length === half);
    await writeFile(guest.file("more"), "");
    await early.transcript.until((it) => it.bytes("stdout").length === all.length);
    assert.equal(early.transcript.offset, 0);
    assert.ok(early.transcript.bytes("stdout").equals(all));
    const late = attach({ tag }, "start");
    await late.transcript.until((it) => it.bytes("stdout").length === keptMax);
    assert.equal(late.transcript.offset, all.length - keptMax);
    assert.ok(late.transcript.bytes("stdout").equals(all.subarray(-keptMax)));
    const kept = await logs({ tag });
    assert.deepEqual([kept.size, kept.dropped], [keptMax, all.length - keptMax]);
    assert.ok(kept.bytes.equals(all.subarray(-keptMax)));
    await agent.signal({ tag }, "SIGKILL");
    assert.equal((await late.transcript.exit()).exitCode, 137);
  });

  it(`is the same for a client that comes back at random bytes (seed ${seed})`, async () => {
    const random = numbers(seed);
    const { tag } = await agent.start(
      shell("i=0; while [ $i -lt 3000 ]; do echo line $i; echo error $i >&2; i=$((i+1)); done; exit 3"),
    );
    const twin = attach({ tag }, "start");
    const parts: Record<string, Buffer[]> = { stdout: [], stderr: [] };
    let offset = 0;
    for (let isOver = false; !isOver; ) {
      const leaveAfter = 1 + Math.floor(random.next().value * 9_000);
      const { transcript, stream } = attach({ tag }, offset);
      let got = 0;
      const taken = () => transcript.order.reduce((sum, [, bytes]) => sum + bytes.length, 0);
      await transcript.until(() => taken() >= leaveAfter).catch(() => {});
      isOver = taken() < leaveAfter;
      if (isOver) assert.equal((await transcript.exit()).exitCode, 3);
      stream.cancel();
      assert.equal(transcript.offset, offset);
      for (const [name, bytes] of transcript.order) {
        const part = isOver ? bytes : bytes.subarray(0, leaveAfter - got);
        parts[name]?.push(part);
        got += part.length;
      }
      offset += got;
    }
    assert.equal((await twin.transcript.exit()).exitCode, 3);
    for (const name of ["stdout", "stderr"] as const)
      assert.ok(Buffer.concat(parts[name] ?? []).equals(twin.transcript.bytes(name)), name);
    assert.equal(offset, twin.transcript.bytes("stdout").length + twin.transcript.bytes("stderr").length);
  });

  it("outlives the connection", async () => {
    const { tag } = await agent.start(shell("echo before; until [ -e on ]; do sleep 0.01; done; echo after"));
    const first = attach({ tag }, "start");
    await first.transcript.until((it) => it.text("stdout") === "before\n");
    agent.close();
    await writeFile(guest.file("on"), "");
    agent = await guest.connect();
    await agent.exit({ tag });
    const again = attach({ tag }, 7);
    assert.equal((await again.transcript.exit()).exitCode, 0);
    assert.equal(again.transcript.text("stdout"), "after\n");
  });

  it("is told by stream and by lines", async () => {
    const { tag } = await ended("printf 'one\\ntwo\\n'; sleep 0.05; printf 'oops\\nlast' >&2");
    const text = async (asked: Partial<LogsRequest>) => (await logs({ tag }, asked)).bytes.toString();
    assert.equal(await text({}), "one\ntwo\noops\nlast");
    assert.equal(await text({ stream: "stdout" }), "one\ntwo\n");
    assert.equal(await text({ stream: "stderr", tail: 1 }), "last");
    assert.equal(await text({ tail: 3 }), "two\noops\nlast");
    assert.equal(await text({ tail: 0 }), "");
    assert.equal(await text({ tail: Number.MAX_SAFE_INTEGER }), "one\ntwo\noops\nlast");
    await assert.rejects(logs({ tag: "no-such-tag" }), failsWith("not_found"));
  });

  it("cuts off a client whose next byte is dropped, and none that only catches up", async () => {
    const { tag } = await agent.start(
      shell("head -c 1000000 /dev/zero; until [ -e flood ]; do sleep 0.01; done; cat /dev/zero"),
    );
    await waitFor("it has printed", async () => (await logs({ tag })).size === 1_000_000);
    const slow = attach({ tag }, "start", { keepsCredit: true });
    await slow.transcript.until((it) => it.bytes("stdout").length > 0);
    const quick = attach({ tag }, "start");
    await quick.transcript.until((it) => it.bytes("stdout").length === 1_000_000);
    await writeFile(guest.file("flood"), "");
    await assert.rejects(slow.transcript.exit(), failsWith("slow_reader"));
    await agent.signal({ tag }, "SIGKILL");
  });

  it("of 64 writers at once is each one's own, within the memory for all", async () => {
    const count = 64;
    const script = (i: number) => `seq -f 'writer ${i} line %g' 1 20000; until [ -e done ]; do sleep 0.05; done`;
    const started = await Promise.all(Array.from({ length: count }, (_, i) => agent.start(shell(script(i)))));
    const lines = (i: number) => Array.from({ length: 20_000 }, (_, line) => `writer ${i} line ${line + 1}\n`).join("");
    // All have printed before one is read: the kept output of each shrinks while others print.
    const isDone = async ([i, { pid }]: [number, { pid: number }]) => {
      const { size, dropped } = await logs({ pid });
      return size + dropped === lines(i).length;
    };
    for (const each of started.entries()) await waitFor(`writer ${each[0]} is done`, () => isDone(each));
    let keptBytes = 0;
    for (const [i, { pid }] of started.entries()) {
      const kept = await logs({ pid });
      assert.ok(kept.bytes.equals(Buffer.from(lines(i)).subarray(kept.dropped)), `writer ${i}`);
      keptBytes += kept.size;
    }
    assert.ok(keptBytes <= 8 * 1024 * 1024, `${keptBytes}`);
    assert.ok(keptBytes > 6 * 1024 * 1024, `${keptBytes}`);
    await writeFile(guest.file("done"), "");
    await Promise.all(started.map(({ pid }) => agent.exit({ pid })));
    // Beyond the memory for all, what ended first is dropped first.
    const before = await ended("echo ended before");
    const running = await agent.start(shell("while :; do head -c 65536 /dev/zero; done"));
    const more = await Promise.all(
      Array.from({ length: 8 }, () => agent.start(shell("while :; do head -c 65536 /dev/zero; done"))),
    );
    await waitFor("the ended one's output is dropped", () =>
      logs(before).then(
        () => false,
        (error) => failsWith("not_found")(error),
      ),
    );
    assert.equal((await agent.exit({ pid: before.pid })).exitCode, 0);
    for (const { pid } of [running, ...more]) await agent.signal({ pid }, "SIGKILL");
  });

  it("of a command that survives its client is kept, and the command goes on as a background process", async () => {
    const script =
      "head -c 500000 /dev/zero; echo one; until [ -e survive ]; do sleep 0.01; done; echo two; cat; exit 9";
    const transcript = new Transcript({ keepsCredit: true });
    const command = { ...shell(script), tag: "survivor", stdin: true, survive: true } as const;
    const stream = transcript.of(agent.run(command, transcript));
    const { tag, pid } = await within("it has started", transcript.process.promise);
    assert.equal(tag, "survivor");
    stream.write(Buffer.from("typed"));
    await transcript.until((it) => it.bytes("stdout").length > 0);
    const early = attach({ tag }, "start");
    await early.transcript.until((it) => it.bytes("stdout").length > 0);
    agent.close();
    agent = await guest.connect();
    const late = attach({ pid }, "start");
    await late.transcript.until((it) => it.bytes("stdout").length === 500_004);
    await writeFile(guest.file("survive"), "");
    await late.transcript.until((it) => it.bytes("stdout").length === 500_013);
    assert.equal(late.transcript.bytes("stdout").subarray(500_000).toString(), "one\ntwo\ntyped");
    await agent.signal({ tag }, "SIGTERM");
    assert.equal((await late.transcript.exit()).exitCode, 143);
    assert.equal((await logs({ tag })).size, 500_013);
  });

  it("of a command that survives is kept after its end, and its client can end it", async () => {
    const ended = new Transcript();
    ended.of(agent.run({ ...shell("echo out; echo err >&2; exit 4"), survive: true }, ended));
    const { tag } = await within("it has started", ended.process.promise);
    assert.match(tag, /^proc-[0-9a-f]{8}$/);
    assert.equal((await ended.exit()).exitCode, 4);
    assert.equal((await agent.exit({ tag })).exitCode, 4);
    assert.equal((await logs({ tag }, { stream: "stderr" })).bytes.toString(), "err\n");
    const stopped = new Transcript();
    const stream = stopped.of(agent.run({ ...shell("sleep 300"), survive: true }, stopped));
    await within("it has started", stopped.process.promise);
    stream.stop();
    assert.equal((await stopped.exit()).exitCode, 137);
    const left = new Transcript();
    const leaving = left.of(agent.run({ ...shell("sleep 300"), survive: true }, left));
    const { pid } = await within("it has started", left.process.promise);
    leaving.cancel();
    await agent.signal({ pid }, "SIGKILL");
    assert.equal((await agent.exit({ pid })).exitCode, 137);
  });

  it("is that of the last 64 processes that ended", async () => {
    const first = await ended("echo first");
    const second = await ended("echo second");
    for (let i = 0; i < 63; i++) await agent.exit(await agent.start({ cmd: "true", args: [] }));
    await assert.rejects(logs(first), failsWith("not_found"));
    await assert.rejects(attach(first, "start").transcript.exit(), failsWith("not_found"));
    assert.equal((await logs(second)).bytes.toString(), "second\n");
  });
});
