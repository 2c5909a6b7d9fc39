/** The handshake with the real agent, and its state before WAKE. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import net from "node:net";
import { describe, it } from "node:test";
import fc from "fast-check";
import { AgentProcess } from "../../test/agent-process.ts";
import { entriesOf } from "../../test/collected.ts";
import { Transcript } from "../../test/fakes/transcript.ts";
import { within } from "../../test/wait-for.ts";
import type { Agent } from "./agent.ts";
import { connectAgent } from "./connection.ts";
import { AgentFailure } from "./failure.ts";
import { encodeFrame, FrameType, headerBytes, listVerbsFlag, moreFlag, writeHeader } from "./frames.ts";
import { decodeWelcome, execRequest, hello, unlistedVerbs, Verb } from "./protocol.ts";
import { WelcomeScanner } from "./welcome-scanner.ts";

const deadlineMs = 60_000;
const { HELLO, OPEN, DATA } = FrameType;
const command = execRequest({ cmd: "sleep", args: ["300"] }, "background")
  .finish()
  .subarray(headerBytes);

function half(type: number, flags: number, bytes: Buffer, length: number): Buffer {
  const header = Buffer.alloc(headerBytes);
  writeHeader(header, 0, { type, flags, epoch: 9, stream: 1, length });
  return Buffer.concat([header, bytes]);
}

async function run(agent: Agent, script: string): Promise<string> {
  const transcript = new Transcript();
  transcript.of(agent.run({ cmd: "/bin/sh", args: ["-c", script] }, transcript));
  await transcript.exit();
  return transcript.text("stdout");
}

describe("the handshake", () => {
  const leftovers: Record<string, Buffer> = {
    nothing: Buffer.alloc(0),
    zeros: Buffer.alloc(100_000),
    "half a header": Buffer.from([OPEN, 0, 9]),
    "half a HELLO": encodeFrame({ type: HELLO, flags: 0, epoch: 9, stream: 0 }, hello(randomBytes(16), 1)).subarray(
      0,
      30,
    ),
    "a HELLO": encodeFrame({ type: HELLO, flags: 0, epoch: 9, stream: 0 }, hello(randomBytes(16), 1)),
    "half a command": half(OPEN, 0, command.subarray(0, 20), command.length),
    "the first half of a long command": half(OPEN, moreFlag, command, command.length),
    "a header without its payload": half(DATA, 0, Buffer.alloc(0), 65_536),
    "most of a payload": half(DATA, 0, randomBytes(65_535), 65_536),
    "an impossible length": half(DATA, 0, Buffer.alloc(0), 0xffff_ffff),
  };

  it("discards an incomplete frame of an earlier host", async () => {
    await using guest = await AgentProcess.start();
    for (const [name, stale] of Object.entries(leftovers)) {
      await using pipe = await guest.behind(stale);
      const agent = await connectAgent(pipe.socketPath, { deadlineMs }).catch((error) =>
        assert.fail(`${name}: ${error}`),
      );
      await agent.probe();
      agent.close();
      await agent.closed;
    }
  });

  it("lists its verbs for a host that asks for them, and only then", async () => {
    await using guest = await AgentProcess.start();
    for (const [flags, verbs] of [
      [0, unlistedVerbs],
      [listVerbsFlag, new Set(Object.values(Verb))],
    ] as const) {
      const nonce = randomBytes(16);
      const scan = new WelcomeScanner({ epoch: 7, nonce }, decodeWelcome);
      const socket = net.connect(guest.socketPath);
      socket.write(encodeFrame({ type: HELLO, flags, epoch: 7, stream: 0 }, hello(nonce, 1)));
      for await (const bytes of socket) {
        const found = scan.take(bytes);
        if (found === undefined) continue;
        assert.deepEqual(found.welcome.verbs, verbs);
        assert.equal(found.welcome.awake, false);
        break;
      }
    }
  });

  it("answers a HELLO of any version with the nearest one that it speaks", async () => {
    await using guest = await AgentProcess.start(["--protocols", "2-3"]);
    for (const [versions, protocol] of [
      [{ min: 1, max: 2 }, 2],
      [{ min: 3, max: 3 }, 3],
      [{ min: 3, max: 9 }, 3],
    ] as const) {
      const agent = await guest.connect({ versions });
      assert.equal(agent.protocol, protocol);
      await agent.probe();
      agent.close();
    }
    for (const [versions, message] of [
      [{ min: 1, max: 1 }, /speaks protocol 2, this server 1$/],
      [{ min: 4, max: 5 }, /speaks protocol 3, this server 4 to 5$/],
    ] as const) {
      await assert.rejects(guest.connect({ versions }), { code: "agent_error", message });
    }
  });

  it("works after random bytes", async () => {
    await using guest = await AgentProcess.start();
    await fc.assert(
      fc.asyncProperty(fc.uint8Array({ maxLength: 3_000 }), async (stale) => {
        await using pipe = await guest.behind(stale);
        const agent = await connectAgent(pipe.socketPath, { deadlineMs });
        await agent.probe();
        agent.close();
        await agent.closed;
      }),
      { numRuns: 50 },
    );
  });

  it("succeeds at the first HELLO, many times in a row", async (t) => {
    await using guest = await AgentProcess.start();
    t.mock.timers.enable({ apis: ["setTimeout"] }); // no HELLO is repeated
    for (let i = 0; i < 50; i++) {
      const agent = await within("the answer to the first HELLO", guest.connect());
      await agent.probe();
      agent.close();
    }
    t.mock.timers.reset();
  });
});

describe("an agent", () => {
  it("refuses requests before WAKE, and all but PROBE, WAKE, FREEZE and THAW while frozen", async () => {
    await using guest = await AgentProcess.start();
    const asleep = (error: unknown) => error instanceof AgentFailure && error.failure === "asleep";
    const agent = await guest.connect();
    assert.equal(agent.awake, false);
    await agent.probe();
    await assert.rejects(agent.start({ cmd: "true", args: [] }), asleep);
    await assert.rejects(run(agent, "echo hi"), asleep);
    await assert.rejects(entriesOf(agent, "/", 0, 1), asleep);
    await guest.wake(agent);
    assert.equal(await run(agent, "echo hi"), "hi\n");
    // Without cgroups it cannot freeze.
    for (let attempt = 0; attempt < 2; attempt++) assert.deepEqual(await agent.freeze(), { frozen: false });
    await agent.probe();
    await assert.rejects(run(agent, "echo hi"), asleep);
    await agent.thaw();
    assert.equal(await run(agent, "echo hi"), "hi\n");
    const again = await guest.connect();
    assert.equal(again.awake, true);
    await again.freeze();
    const third = await guest.connect();
    assert.equal(third.awake, false);
    await guest.wake(third);
    assert.equal(await run(third, "echo hi"), "hi\n");
  });

  it("stays asleep when WAKE fails", async () => {
    await using guest = await AgentProcess.start();
    const agent = await guest.connect();
    const tooLittle = agent.wake({ entropy: Buffer.alloc(31), hostname: "test", machineId: "0".repeat(32) });
    await assert.rejects(tooLittle, AgentFailure);
    await assert.rejects(run(agent, "echo hi"), AgentFailure);
  });
});
