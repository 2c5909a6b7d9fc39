import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { describe, it } from "node:test";
import fc from "fast-check";
import { FakeGuest } from "../../test/fakes/fake-guest.ts";
import { CapsuleError } from "../wire/errors.ts";
import { connectAgent } from "./connection.ts";
import { encodeFrame, FrameType, writeHeader } from "./frames.ts";
import { decodeWelcome, emptyRecord, unlistedVerbs, Verb } from "./protocol.ts";
import { RecordWriter } from "./records.ts";
import { WelcomeScanner } from "./welcome-scanner.ts";

const deadlineMs = 60_000;

const answerProbes = {
  onFrame: (frame: { type: number; stream: number }, guest: FakeGuest) => {
    if (frame.type === FrameType.OPEN) guest.frame(FrameType.RESULT, frame.stream, emptyRecord);
  },
};

function isAgentError(message: RegExp): (error: unknown) => boolean {
  return (error) => error instanceof CapsuleError && error.code === "agent_error" && message.test(error.message);
}

describe("handshake", () => {
  it("completes at the first HELLO, and verbs work after it", async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] }); // so that HELLO is not repeated on a slow machine
    await using guest = await FakeGuest.listen({ ...answerProbes, awake: false });
    const agent = await connectAgent(guest.socketPath, { deadlineMs });
    assert.equal(agent.awake, false);
    assert.equal(guest.hellos, 1);
    await agent.probe();
    agent.close();
  });

  it("discards bytes of an earlier connection, incomplete frames included", async () => {
    const half = Buffer.alloc(12 + 3_000, 0x41);
    writeHeader(half, 0, { type: FrameType.DATA, flags: 1, epoch: 7, stream: 3, length: 65_536 });
    for (const stale of [half, randomBytes(300_000), Buffer.alloc(100_000)]) {
      await using guest = await FakeGuest.listen({ ...answerProbes, stale });
      const agent = await connectAgent(guest.socketPath, { deadlineMs });
      await agent.probe();
      agent.close();
    }
  });

  it("repeats HELLO with a new nonce until there is an answer", async () => {
    await using guest = await FakeGuest.listen({ ...answerProbes, deafHellos: 2 });
    const agent = await connectAgent(guest.socketPath, { deadlineMs });
    await agent.probe();
    assert.ok(guest.hellos >= 3, `${guest.hellos}`);
    agent.close();
  });

  it("says the version that a saved agent is known to speak, or else the newest", async () => {
    const versions = { min: 1, max: 3 };
    await using saved = await FakeGuest.listen({ ...answerProbes, protocols: { min: 2, max: 2 }, isStrict: true });
    const known = await connectAgent(saved.socketPath, { deadlineMs, versions, protocol: 2 });
    assert.equal(known.protocol, 2);
    await known.probe();
    known.close();
    await using booted = await FakeGuest.listen({ ...answerProbes, protocols: { min: 3, max: 4 } });
    const newest = await connectAgent(booted.socketPath, { deadlineMs, versions });
    assert.equal(newest.protocol, 3);
    newest.close();
    assert.deepEqual([new Set(saved.versions), new Set(booted.versions)], [new Set([2]), new Set([3])]);
  });

  it("goes on with the nearest version of the agent where this side speaks it", async () => {
    await using guest = await FakeGuest.listen({ ...answerProbes, protocols: { min: 1, max: 2 } });
    const agent = await connectAgent(guest.socketPath, { deadlineMs, versions: { min: 2, max: 3 } });
    assert.equal(agent.protocol, 2);
    await agent.probe();
    agent.close();
  });

  it("rejects at the answer of an agent whose versions are all others", async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] }); // the deadline never comes
    for (const [protocols, versions, message] of [
      [{ min: 1, max: 1 }, { min: 2, max: 3 }, /^the guest agent speaks protocol 1, this server 2 to 3$/],
      [{ min: 4, max: 5 }, { min: 2, max: 2 }, /^the guest agent speaks protocol 4, this server 2$/],
    ] as const) {
      await using guest = await FakeGuest.listen({ protocols });
      await assert.rejects(connectAgent(guest.socketPath, { deadlineMs, versions }), isAgentError(message));
    }
  });

  it("takes an agent without a list for one that has the verbs of the first release", async () => {
    await using guest = await FakeGuest.listen({ ...answerProbes, verbs: null });
    const agent = await connectAgent(guest.socketPath, { deadlineMs });
    await agent.remove("/file");
    const sent = guest.frames.filter((frame) => frame.type === FrameType.OPEN);
    assert.deepEqual(
      sent.map((frame) => frame.payload.readUInt16LE()),
      [Verb.REMOVE],
    );
    agent.close();
  });

  it("refuses a verb that the agent does not list, before anything is sent", async () => {
    await using guest = await FakeGuest.listen({ ...answerProbes, verbs: [Verb.PROBE, Verb.REMOVE] });
    const agent = await connectAgent(guest.socketPath, { deadlineMs });
    const missing = (error: unknown) => {
      assert.ok(error instanceof CapsuleError && error.code === "conflict" && error.status === 409);
      assert.match(error.message, /earlier release, which has no verb (MKDIR|EXEC).*stop and start it/);
      return true;
    };
    await assert.rejects(agent.mkdir("/folder"), missing);
    await assert.rejects(agent.start({ cmd: "true", args: [] }), missing);
    await agent.remove("/file");
    await agent.thaw(); // sent without being listed: no guest could be resumed without it
    const sent = guest.frames.filter((frame) => frame.type === FrameType.OPEN);
    assert.deepEqual(
      sent.map((frame) => frame.payload.readUInt16LE()),
      [Verb.REMOVE, Verb.THAW],
    );
    agent.close();
  });

  it("rejects at its deadline, when aborted, and at once for a missing socket or a flood", async () => {
    await using deaf = await FakeGuest.listen({ deafHellos: 1_000 });
    await assert.rejects(connectAgent(deaf.socketPath, { deadlineMs: 50 }), isAgentError(/within 50 ms/));
    const abort = new AbortController();
    const given = connectAgent(deaf.socketPath, { deadlineMs, signal: abort.signal });
    abort.abort();
    await assert.rejects(given, isAgentError(/aborted/));
    await assert.rejects(connectAgent(deaf.socketPath, { deadlineMs, signal: abort.signal }), isAgentError(/aborted/));
    await assert.rejects(connectAgent(`${deaf.socketPath}.not`, { deadlineMs }), isAgentError(/lost/));
    await using flood = await FakeGuest.listen({ deafHellos: 1_000, stale: Buffer.alloc(5 * 1024 * 1024, 1) });
    await assert.rejects(connectAgent(flood.socketPath, { deadlineMs }), isAgentError(/no WELCOME/));
  });
});

describe("WelcomeScanner", () => {
  it("finds the WELCOME in any chunks after any bytes, and returns the bytes after it", () => {
    fc.assert(
      fc.property(
        fc.uint8Array({ maxLength: 300 }),
        fc.uint8Array({ maxLength: 300 }),
        fc.string({ maxLength: 60 }),
        fc.integer({ min: 1, max: 65_535 }),
        fc.infiniteStream(fc.integer({ min: 1, max: 60 })),
        (before, after, agent, epoch, sizes) => {
          const nonce = randomBytes(16);
          const payload = new RecordWriter().raw(nonce).u16(1).str(agent).u8(1).u32(9).finish();
          const frame = encodeFrame({ type: FrameType.WELCOME, flags: 0, epoch, stream: 0 }, payload);
          const bytes = Buffer.concat([before, frame, after]);
          const scan = new WelcomeScanner({ epoch, nonce }, decodeWelcome);
          let at = 0;
          for (const size of sizes) {
            const found = scan.take(bytes.subarray(at, at + size));
            at = Math.min(at + size, bytes.length);
            if (!found) continue;
            assert.deepEqual(found.welcome, { version: 1, agent, awake: true, pid: 9, verbs: unlistedVerbs });
            assert.ok(at >= before.length + frame.length);
            assert.deepEqual(Buffer.from(found.rest), bytes.subarray(before.length + frame.length, at));
            return;
          }
        },
      ),
    );
  });

  it("ignores a WELCOME longer than 1,024 bytes", () => {
    const nonce = randomBytes(16);
    const scan = new WelcomeScanner({ epoch: 7, nonce }, decodeWelcome);
    const header = Buffer.alloc(12);
    writeHeader(header, 0, { type: FrameType.WELCOME, flags: 0, epoch: 7, stream: 0, length: 65_536 });
    assert.equal(scan.take(Buffer.concat([header, nonce])), undefined);
    const payload = new RecordWriter().raw(nonce).u16(1).str("agent").u8(1).u32(1).finish();
    const honest = encodeFrame({ type: FrameType.WELCOME, flags: 0, epoch: 7, stream: 0 }, payload);
    assert.equal(scan.take(honest)?.welcome.agent, "agent", "what follows is looked at at once");
  });

  it("ignores a WELCOME with another nonce", () => {
    const nonce = randomBytes(16);
    const payload = new RecordWriter().raw(nonce).u16(1).str("x").u8(1).u32(9).finish();
    const frame = (epoch: number) => encodeFrame({ type: FrameType.WELCOME, flags: 0, epoch, stream: 0 }, payload);
    const scan = new WelcomeScanner({ epoch: 5, nonce }, decodeWelcome);
    assert.equal(scan.take(frame(6)), undefined);
    assert.equal(scan.take(nonce), undefined);
    assert.ok(scan.take(frame(5)));
  });
});
