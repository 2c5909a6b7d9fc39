import assert from "node:assert/strict";
import { describe, it, type TestContext } from "node:test";
import { entriesOf, processesOf } from "../../test/collected.ts";
import { FakeGuest, type HostFrame } from "../../test/fakes/fake-guest.ts";
import { Transcript } from "../../test/fakes/transcript.ts";
import { CapsuleError } from "../wire/errors.ts";
import { connectAgent } from "./connection.ts";
import { encodeFrame, FrameType, moreFlag } from "./frames.ts";
import { SilenceError } from "./liveness.ts";
import { emptyRecord, endRecord, execRequest, limits, Verb, windowRecord } from "./protocol.ts";
import { RecordWriter } from "./records.ts";

const deadlineMs = 60_000;
const { OPEN, DATA, END, WINDOW, EVENT, RESULT, FAIL, CANCEL, NOTICE } = FrameType;

const isOpen = (frame: HostFrame) => frame.type === OPEN;
const isLastOpen = (frame: HostFrame) => isOpen(frame) && (frame.flags & moreFlag) === 0;
const started = new RecordWriter().u16(1).u32(42).str("proc-00000000").finish();
const exited = new RecordWriter().u32(0).u8(0).u64(1_000n).finish();

function isAgentError(error: unknown): boolean {
  return error instanceof CapsuleError && error.code === "agent_error";
}

async function connected(onFrame?: (frame: HostFrame, guest: FakeGuest) => void) {
  const guest = await FakeGuest.listen(onFrame ? { onFrame } : {});
  const agent = await connectAgent(guest.socketPath, { deadlineMs });
  return {
    guest,
    agent,
    [Symbol.asyncDispose]: async () => {
      agent.close();
      await guest[Symbol.asyncDispose]();
    },
  };
}

/** Stream 1 is an unanswered call, stream 2 a running command that has started. */
const breaches: Record<string, (guest: FakeGuest) => void> = {
  "a frame of unknown type": (guest) => guest.frame(0x0c, 1, emptyRecord),
  "a frame only the host may send": (guest) => guest.frame(OPEN, 1, emptyRecord),
  "a frame for a stream never opened": (guest) => guest.frame(RESULT, 3, emptyRecord),
  "a frame for stream 0": (guest) => guest.frame(DATA, 0, emptyRecord),
  "a payload longer than allowed": (guest) => guest.header(DATA, 2, 65_537, 1),
  "flags on a control frame": (guest) => guest.frame(RESULT, 1, emptyRecord, 1),
  "a record without its end mark": (guest) => guest.frame(RESULT, 1, Buffer.alloc(1)),
  "an empty result": (guest) => guest.frame(RESULT, 2, Buffer.alloc(0)),
  "data beyond the window": (guest) => {
    for (let i = 0; i < 5; i++) guest.frame(DATA, 2, Buffer.alloc(65_536), 1);
  },
  "data for a call that has none": (guest) => guest.frame(DATA, 1, emptyRecord),
  "data on a channel the verb does not have": (guest) => guest.frame(DATA, 2, emptyRecord, 0),
  "data on a channel that does not exist": (guest) => guest.frame(DATA, 2, emptyRecord, 9),
  "an end with the wrong total": (guest) => guest.frame(END, 2, endRecord(1)),
  "data after the end": (guest) => {
    guest.frame(END, 2, endRecord(0));
    guest.frame(DATA, 2, emptyRecord, 1);
  },
  "credit for bytes that were not sent": (guest) => guest.frame(WINDOW, 2, windowRecord(1)),
  "credit for nothing": (guest) => guest.frame(WINDOW, 2, windowRecord(0)),
  "data without a byte": (guest) => guest.frame(DATA, 2, Buffer.alloc(0), 1),
  "a second halt notice": (guest) => {
    for (let i = 0; i < 2; i++) guest.frame(NOTICE, 0, new RecordWriter().u16(1).u8(0).finish());
  },
  "frames of other epochs without end": (guest) => {
    guest.epoch++;
    for (let i = 0; i < 20; i++) guest.frame(DATA, 2, Buffer.alloc(65_536), 1);
    guest.epoch--;
  },
  "padding without end": (guest) => {
    for (let i = 0; i < 20; i++) guest.say(Buffer.alloc(65_536));
  },
  "a second start": (guest) => guest.frame(EVENT, 2, started),
  "an event of another verb": (guest) => guest.frame(EVENT, 2, new RecordWriter().u16(32).u64(1n).finish()),
  "an event for a call that has none": (guest) => guest.frame(EVENT, 1, started),
  "an impossible exit": (guest) => guest.frame(RESULT, 2, new RecordWriter().u32(7).u8(9).u64(1n).finish()),
  "a failure that does not parse": (guest) => guest.frame(FAIL, 1, Buffer.from([1, 2, 3])),
  "a notice of unknown kind": (guest) => guest.frame(NOTICE, 0, new RecordWriter().u16(9).finish()),
};

describe("a protocol violation ends the connection and every stream:", () => {
  for (const [name, breach] of Object.entries(breaches)) {
    it(name, async () => {
      await using peer = await connected();
      const call = assert.rejects(peer.agent.probe(), isAgentError);
      const transcript = new Transcript();
      peer.agent.run({ cmd: "x", args: [] }, transcript);
      await peer.guest.heard((frame) => isOpen(frame) && frame.stream === 2);
      peer.guest.frame(EVENT, 2, started);
      await transcript.process.promise;
      breach(peer.guest);
      assert.ok(isAgentError(await peer.agent.closed));
      await call;
      assert.ok(isAgentError(await transcript.ended.promise));
      assert.equal(transcript.ends, 1);
      await assert.rejects(peer.agent.probe(), isAgentError);
    });
  }
});

describe("channel", () => {
  it("ignores frames of other epochs and of closed streams", async () => {
    await using peer = await connected((frame, guest) => {
      if (frame.type !== OPEN) return;
      guest.epoch++;
      guest.frame(FAIL, 999, Buffer.alloc(3));
      guest.epoch--;
      for (let i = 0; i < 2; i++) guest.frame(RESULT, frame.stream, emptyRecord);
      guest.frame(DATA, frame.stream, Buffer.alloc(300));
    });
    await peer.agent.probe();
    await peer.agent.probe();
  });

  it("accepts one start event that it did not request, from an older agent", async () => {
    await using peer = await connected();
    const over = Promise.withResolvers<unknown>();
    const sink = { output() {}, exited: over.resolve, failed: over.reject };
    peer.agent.run({ cmd: "x", args: [] }, sink);
    await peer.guest.heard(isOpen);
    peer.guest.frame(EVENT, 1, started);
    peer.guest.frame(RESULT, 1, exited);
    assert.deepEqual(await over.promise, { exitCode: 0, guestDurationUs: 1_000 });
    peer.agent.run({ cmd: "x", args: [] }, { ...sink, failed() {} });
    await peer.guest.heard((frame) => isOpen(frame) && frame.stream === 2);
    for (let i = 0; i < 2; i++) peer.guest.frame(EVENT, 2, started);
    assert.match((await peer.agent.closed).message, /started twice/);
  });

  it("reports no exit when the connection is lost", async () => {
    await using peer = await connected();
    const transcript = new Transcript();
    peer.agent.run({ cmd: "x", args: [] }, transcript);
    await peer.guest.heard(isOpen);
    peer.guest.frame(EVENT, 1, started);
    await transcript.process.promise;
    peer.guest.header(RESULT, 1, exited.length);
    peer.guest.connection?.end(exited.subarray(0, 4));
    assert.ok(isAgentError(await transcript.ended.promise));
    assert.ok(isAgentError(await peer.agent.closed));
  });

  it("reports a guest that halted or rebooted itself as the reason", async () => {
    await using peer = await connected();
    peer.guest.frame(NOTICE, 0, new RecordWriter().u16(1).u8(0).finish());
    peer.guest.connection?.end();
    assert.match((await peer.agent.closed).message, /powered itself off/);
  });

  it("returns credit in steps; an idle reader holds at most a window", async () => {
    await using peer = await connected();
    const transcript = new Transcript();
    const run = peer.agent.run({ cmd: "x", args: [] }, transcript);
    await peer.guest.heard(isOpen);
    peer.guest.frame(EVENT, 1, started);
    for (let i = 0; i < 4; i++) peer.guest.frame(DATA, 1, Buffer.alloc(65_536), 1);
    await transcript.until((it) => it.chunks.stdout.length > 0);
    run.consumed(limits.grantBytes - 1);
    run.consumed(1);
    const window = await peer.guest.heard((frame) => frame.type === WINDOW);
    assert.deepEqual(window.payload, windowRecord(limits.grantBytes));
    // More than arrived cannot be consumed: the guest may send exactly what was granted.
    run.consumed(10 * limits.windowBytes);
    peer.guest.frame(DATA, 1, Buffer.alloc(65_536), 1);
    peer.guest.frame(RESULT, 1, exited);
    assert.deepEqual(await transcript.ended.promise, { exitCode: 0, guestDurationUs: 1_000 });
    assert.equal(transcript.bytes("stdout").length, 5 * 65_536);
  });

  it("calls the sink no more after a cancellation", async () => {
    await using peer = await connected();
    const transcript = new Transcript();
    const run = peer.agent.run({ cmd: "x", args: [] }, transcript);
    run.cancel();
    run.cancel();
    await peer.guest.heard((frame) => frame.type === CANCEL);
    peer.guest.frame(EVENT, 1, started);
    peer.guest.frame(RESULT, 1, exited);
    peer.agent.close();
    assert.equal(transcript.ends, 0);
    assert.equal(peer.guest.frames.filter((frame) => frame.type === CANCEL).length, 1);
  });

  it("detaches from a terminal with the number of consumed bytes, not of received ones", async () => {
    await using peer = await connected();
    const transcript = new Transcript({ keepsCredit: true });
    const terminal = peer.agent.pty({ cmd: "x", args: [] }, { cols: 80, rows: 24 }, transcript);
    await peer.guest.heard(isOpen);
    peer.guest.frame(EVENT, 1, started);
    peer.guest.frame(DATA, 1, Buffer.from("0123456789"));
    await transcript.until((it) => it.text("pty") === "0123456789");
    terminal.consumed(4);
    terminal.cancel();
    await peer.guest.heard((frame) => frame.type === CANCEL);
    const taken = peer.guest.frames.find((frame) => frame.type === EVENT);
    assert.equal(taken?.payload.readBigUInt64LE(2), 4n);
  });

  it("accepts frames in flight of a cancelled stream, and closes the connection for many more", async () => {
    await using peer = await connected((frame, guest) => {
      if (isOpen(frame) && frame.payload.readUInt16LE() === Verb.PROBE) guest.frame(RESULT, frame.stream, emptyRecord);
    });
    const run = peer.agent.run({ cmd: "x", args: [] }, new Transcript());
    await peer.guest.heard(isOpen);
    run.cancel();
    const tiny = Buffer.alloc(13 * 65_536);
    for (let at = 0; at < tiny.length; at += 13) {
      const frame = encodeFrame({ type: DATA, flags: 1, epoch: peer.guest.epoch, stream: 1 }, Buffer.of(120));
      tiny.set(frame, at);
    }
    for (let i = 0; i < 4; i++) peer.guest.say(tiny);
    await peer.agent.probe();
    for (let i = 0; i < 3; i++) peer.guest.say(tiny);
    assert.match((await peer.agent.closed).message, /frames for closed streams/);
  });

  it("cancels a call whose signal fires, with the signal's reason", async () => {
    await using peer = await connected();
    const controller = new AbortController();
    const { signal } = controller;
    const calls = [
      peer.agent.mkdir("/x", signal),
      peer.agent.remove("/x", signal),
      peer.agent.read("/x", signal),
      entriesOf(peer.agent, "/x", 1, 1, signal),
      processesOf(peer.agent, signal),
      peer.agent.start({ cmd: "x", args: [] }, signal),
      peer.agent.signal({ pid: 1 }, "SIGKILL", signal),
    ].map((call) => assert.rejects(call, /had enough/));
    controller.abort(new Error("had enough"));
    await Promise.all(calls);
    await assert.rejects(peer.agent.mkdir("/x", signal), /had enough/);
    await peer.guest.heard((frame) => frame.type === CANCEL && frame.stream === calls.length + 1);
    assert.equal(peer.guest.frames.filter((frame) => frame.type === CANCEL).length, calls.length + 1);
  });

  it("splits a long request and refuses one that is too long", async () => {
    await using peer = await connected((frame, guest) => {
      if (isLastOpen(frame)) guest.frame(RESULT, frame.stream, new RecordWriter().u32(1).str("t").finish());
    });
    for (const length of [65_480, 65_490, 65_536, 131_072, 1_000_000]) {
      const command = { cmd: "c", args: ["x".repeat(length)] };
      peer.guest.frames.length = 0;
      await peer.agent.start(command);
      const parts = peer.guest.frames.map((frame) => frame.payload);
      assert.ok(parts.every((part) => part.length <= 65_536));
      assert.deepEqual(Buffer.concat(parts), execRequest(command, "background").finish().subarray(12));
    }
    const tooLong = peer.agent.start({ cmd: "c", args: ["x".repeat(limits.requestBytes)] });
    await assert.rejects(tooLong, (error) => error instanceof CapsuleError && error.code === "invalid_request");
  });

  it("limits the number of open streams", async () => {
    await using peer = await connected();
    const runs = Array.from({ length: limits.streams }, () => peer.agent.run({ cmd: "x", args: [] }, new Transcript()));
    const refused = (error: unknown) => error instanceof CapsuleError && error.code === "quota_exceeded";
    await assert.rejects(peer.agent.remove("/x"), refused);
    runs[0]?.cancel();
    const removal = peer.agent.remove("/x");
    const open = await peer.guest.heard((frame) => isOpen(frame) && frame.stream > limits.streams);
    peer.guest.frame(RESULT, open.stream, emptyRecord);
    await removal;
  });

  it("probes and freezes also at the limit of streams", async () => {
    await using peer = await connected((frame, guest) => {
      const verb = isOpen(frame) ? frame.payload.readUInt16LE() : 0;
      if (verb === Verb.PROBE) guest.frame(RESULT, frame.stream, emptyRecord);
      if (verb === Verb.FREEZE) guest.frame(RESULT, frame.stream, new RecordWriter().u8(1).finish());
    });
    for (let i = 0; i < limits.streams; i++) peer.agent.run({ cmd: "x", args: [] }, new Transcript());
    await peer.agent.probe();
    assert.deepEqual(await peer.agent.freeze(), { frozen: true });
  });

  it("refuses new requests to a guest that does not read, and closes the connection at twice that backlog", async () => {
    await using peer = await connected();
    const terminal = peer.agent.pty({ cmd: "x", args: [] }, { cols: 80, rows: 24 }, new Transcript());
    peer.guest.connection?.pause();
    const large = { cmd: "x", args: ["x".repeat(1024 * 1024)] };
    let refusal: unknown;
    for (let i = 0; i < 64 && refusal === undefined; i++) {
      const transcript = new Transcript();
      const run = peer.agent.run(large, transcript);
      refusal = await Promise.race([transcript.ended.promise, new Promise<void>((done) => setImmediate(done))]);
      run.cancel();
    }
    assert.ok(refusal instanceof CapsuleError && refusal.code === "quota_exceeded", String(refusal));
    for (let i = 0; i < 2_000_000; i++) terminal.resize(80, 24);
    await assert.rejects(
      Promise.race([peer.agent.closed.then(() => "closed"), peer.agent.remove("/x")]),
      (error) => error instanceof CapsuleError && error.code === "quota_exceeded",
    );
    const entropy = Buffer.alloc(64 * 1024);
    const wakes = Array.from({ length: 200 }, () => {
      const wake = peer.agent.wake({ entropy, hostname: "x", machineId: "0".repeat(32) });
      return assert.rejects(wake, isAgentError);
    });
    peer.agent.run({ cmd: "x", args: [] }, new Transcript()).cancel();
    terminal.cancel();
    assert.match((await peer.agent.closed).message, /does not read/);
    await Promise.all(wakes);
  });

  it("sends only the latest size of a terminal to a guest that did not read", async () => {
    await using peer = await connected();
    const terminal = peer.agent.pty({ cmd: "x", args: [] }, { cols: 80, rows: 24 }, new Transcript());
    await peer.guest.heard(isOpen);
    peer.guest.connection?.pause();
    for (let i = 0; i < 8; i++) peer.agent.run({ cmd: "x", args: ["x".repeat(256 * 1024)] }, new Transcript());
    for (let rows = 1; rows <= 1_000; rows++) terminal.resize(100, rows);
    peer.guest.connection?.resume();
    await peer.guest.heard((frame) => frame.type === EVENT);
    const resizes = peer.guest.frames.filter((frame) => frame.type === EVENT);
    assert.deepEqual(
      resizes.map((frame) => frame.payload.readUInt16LE(4)),
      [1_000],
    );
  });

  it("fails the other streams when one handler throws", async () => {
    await using peer = await connected();
    const bad = new Transcript();
    bad.failed = () => {
      throw new Error("a bad listener");
    };
    const warned = new Promise<Error>((resolve) => process.once("warning", resolve));
    peer.agent.run({ cmd: "x", args: [] }, bad);
    const good = new Transcript();
    peer.agent.run({ cmd: "x", args: [] }, good);
    peer.agent.close();
    assert.ok(isAgentError(await good.ended.promise));
    assert.match((await warned).message, /bad listener/);
  });
});

describe("an unresponsive guest", () => {
  const silenceMs = 6_000;
  const lookMs = silenceMs / 6;

  async function watched(t: TestContext, onFrame: (frame: HostFrame, guest: FakeGuest) => void) {
    t.mock.timers.enable({ apis: ["setInterval"] });
    const guest = await FakeGuest.listen({ onFrame });
    const agent = await connectAgent(guest.socketPath, { deadlineMs, silenceMs });
    return { guest, agent, pass: (looks: number) => t.mock.timers.tick(looks * lookMs) };
  }

  it("is probed, also without open requests, and disconnected when it does not answer in time", async (t) => {
    for (const isAsked of [false, true]) {
      const { guest, agent, pass } = await watched(t, () => {});
      const call = isAsked ? assert.rejects(agent.mkdir("/x"), isAgentError) : undefined;
      let isClosed = false;
      void agent.closed.then(() => {
        isClosed = true;
      });
      pass(2); // the first tick counts the WELCOME as an answer
      await guest.heard((frame) => isOpen(frame) && frame.payload.readUInt16LE() === Verb.PROBE);
      pass(5);
      await new Promise(setImmediate);
      assert.equal(isClosed, false, "not before its time");
      pass(1);
      const reason = await agent.closed;
      assert.match(reason.message, /stopped answering/);
      assert.ok(reason.cause instanceof SilenceError);
      await call;
      const probes = guest.frames.filter((frame) => isOpen(frame) && frame.payload.readUInt16LE() === Verb.PROBE);
      assert.equal(probes.length, 1);
      await guest[Symbol.asyncDispose]();
      t.mock.timers.reset();
    }
  });

  it("is disconnected also when it is frozen and thawed repeatedly", async (t) => {
    const { guest, agent, pass } = await watched(t, () => {});
    const calls: Promise<void>[] = [];
    let isClosed = false;
    void agent.closed.then(() => {
      isClosed = true;
    });
    for (let tries = 0; tries < 20 && !isClosed; tries++) {
      calls.push(assert.rejects(agent.freeze(), isAgentError));
      calls.push(assert.rejects(agent.thaw(), isAgentError));
      pass(1);
      await new Promise(setImmediate);
    }
    assert.ok((await agent.closed).cause instanceof SilenceError);
    assert.ok(calls.length <= 2 * 9, `${calls.length}`); // one tick that counts the WELCOME, and eight
    await Promise.all(calls);
    await guest[Symbol.asyncDispose]();
  });

  it("stays connected while it answers or is frozen", async (t) => {
    const { guest, agent, pass } = await watched(t, (frame, guest) => {
      if (!isOpen(frame) || frame.payload.readUInt16LE() === Verb.MKDIR) return;
      const frozen = frame.payload.readUInt16LE() === Verb.FREEZE;
      guest.frame(RESULT, frame.stream, frozen ? new RecordWriter().u8(1).finish() : emptyRecord);
    });
    const pending = assert.rejects(agent.mkdir("/x"), /test is over/);
    for (let i = 0; i < 10; i++) {
      pass(1);
      await agent.probe(); // behind the channel's own probe, so that one is answered too
    }
    assert.deepEqual(await agent.freeze(), { frozen: true });
    pass(10);
    await agent.thaw();
    pass(1);
    agent.close(new Error("the test is over"));
    assert.match((await agent.closed).message, /test is over/);
    await pending;
    await guest[Symbol.asyncDispose]();
  });
});
