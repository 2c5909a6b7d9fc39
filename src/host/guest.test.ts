/** A guest whose agent is cut off, falls silent, talks nonsense or answers late; and one whose VM ends. */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { FakeGuest, type HostFrame } from "../../test/fakes/fake-guest.ts";
import { FakeVm } from "../../test/fakes/fake-vm.ts";
import { connectAgent } from "../agent/connection.ts";
import { FrameType } from "../agent/frames.ts";
import { emptyRecord, Verb } from "../agent/protocol.ts";
import { RecordWriter } from "../agent/records.ts";
import { CapsuleError } from "../wire/errors.ts";
import { freeze, requireRunning, resumeAfterStop } from "./checkpoint/quiesce.ts";
import { type Connect, LiveGuest } from "./guest.ts";
import { identityOf } from "./identity.ts";

const patienceMs = 10_000;
const frozen = new RecordWriter().u8(1).finish();
const notFrozen = new RecordWriter().u8(0).finish();

const verbOf = ({ type, payload }: HostFrame) => (type === FrameType.OPEN ? payload.readUInt16LE() : 0);

/** Answers every verb but those in `unanswered`. */
function answering(...unanswered: number[]) {
  return (frame: HostFrame, guest: FakeGuest) => {
    const verb = verbOf(frame);
    if (verb === 0 || unanswered.includes(verb)) return;
    guest.frame(FrameType.RESULT, frame.stream, verb === Verb.FREEZE ? frozen : emptyRecord);
  };
}

interface Setting {
  fake: FakeGuest;
  vm: FakeVm;
  live: LiveGuest;
  /** Where the next connections go, and how many there were. */
  line: { socketPath: string; connects: number };
}

async function live(fake: FakeGuest, reconnectMs = patienceMs, silenceMs = patienceMs): Promise<Setting> {
  const vm = new FakeVm(fake.socketPath);
  const line = { socketPath: fake.socketPath, connects: 0 };
  const connect: Connect = (_socket, deadlineMs, signal) => {
    line.connects++;
    return connectAgent(line.socketPath, { deadlineMs, signal, silenceMs });
  };
  const agent = await connect(fake.socketPath, patienceMs);
  return { fake, vm, live: new LiveGuest("cl-x", null, vm, agent, { connect, reconnectMs }), line };
}

const isUnreachable = (error: unknown) =>
  error instanceof CapsuleError && error.code === "agent_error" && /cannot be reached/.test(error.message);

/** The connection is gone, and the guest knows. */
async function cut({ fake, live }: Setting): Promise<void> {
  const { closed } = live.agent;
  fake.connection?.destroy();
  await closed;
}

/** The agent, as soon as it can be reached. */
async function reachable({ live }: Setting): Promise<void> {
  for (;;) {
    try {
      await live.agent.probe();
      return;
    } catch (error) {
      assert.ok(isUnreachable(error) || error instanceof CapsuleError, String(error));
      await delay(1);
    }
  }
}

it("rests, and is roused with the moment's randomness before anything else is asked of it", async () => {
  await using fake = await FakeGuest.listen({ onFrame: answering() });
  const { live: guest, vm } = await live(fake);
  await guest.park();
  assert.equal(vm.found, "stopped");
  const [first, second] = [identityOf("cl-x"), identityOf("cl-x")];
  assert.notDeepEqual(first.entropy, second.entropy, "never the same twice");
  await guest.unpark(second);
  assert.equal(vm.found, "running");
  const opened = fake.frames.filter((frame) => verbOf(frame) !== 0);
  assert.deepEqual(opened.map(verbOf), [Verb.FREEZE, Verb.WAKE]);
  assert.ok(opened[1]!.payload.includes(Buffer.from(second.entropy)), "which is what its kernel is given");
  guest.close();
});

describe("the connection", () => {
  it("is made anew when it breaks; meanwhile the agent cannot be reached", async () => {
    await using fake = await FakeGuest.listen({ onFrame: answering() });
    const setting = await live(fake);
    await cut(setting);
    assert.throws(() => setting.live.agent, isUnreachable);
    await reachable(setting);
    assert.equal(setting.line.connects, 2);
    setting.live.close();
  });

  it("brings the THAW again that was lost with it", async () => {
    await using fake = await FakeGuest.listen({ onFrame: answering(), awake: false });
    const setting = await live(fake);
    await setting.live.thaw();
    fake.frames.length = 0;
    await cut(setting);
    await fake.heard((frame) => verbOf(frame) === Verb.THAW);
    setting.live.close();
  });

  it("does not thaw a guest that is held", async () => {
    await using fake = await FakeGuest.listen({ onFrame: answering(), awake: false });
    const setting = await live(fake);
    await cut(setting);
    await reachable(setting);
    assert.ok(!fake.frames.some((frame) => verbOf(frame) === Verb.THAW));
    setting.live.close();
  });

  it("means nothing while the host freezes the guest, and is made anew afterwards, once", async () => {
    await using fake = await FakeGuest.listen({ onFrame: answering() });
    const setting = await live(fake);
    setting.live.suspendMonitoring();
    await cut(setting);
    assert.equal(setting.line.connects, 1);
    await setting.live.resumeMonitoring();
    await setting.live.agent.probe();
    assert.equal(setting.line.connects, 2);
    setting.live.close();
  });

  it("has one attempt at a time: freezing the guest ends the one under way", async () => {
    await using fake = await FakeGuest.listen({ onFrame: answering() });
    await using deaf = await FakeGuest.listen({ deafHellos: 1_000 });
    const setting = await live(fake);
    setting.line.socketPath = deaf.socketPath;
    await cut(setting);
    setting.live.suspendMonitoring();
    setting.line.socketPath = fake.socketPath;
    await setting.live.resumeMonitoring();
    await setting.live.agent.probe();
    assert.equal(setting.line.connects, 3);
    setting.live.close();
  });

  it("when hung up, rejects what is in flight with the reason, and is no end by itself", async () => {
    await using fake = await FakeGuest.listen({ onFrame: answering(Verb.MKDIR) });
    const setting = await live(fake);
    let hasEnded = false;
    void setting.live.ended.then(() => {
      hasEnded = true;
    });
    const call = assert.rejects(setting.live.agent.mkdir("/x"), /it was paused/);
    setting.live.disconnect(new CapsuleError("invalid_state", "it was paused"));
    await call;
    await new Promise(setImmediate);
    assert.ok(!hasEnded);
    assert.equal(setting.line.connects, 1);
  });
});

describe("an agent", () => {
  it("that falls silent for good is the end of the guest", async () => {
    await using fake = await FakeGuest.listen({ onFrame: answering(Verb.MKDIR, Verb.PROBE) });
    await using deaf = await FakeGuest.listen({ deafHellos: 1_000 });
    const setting = await live(fake, 50, 50);
    setting.line.socketPath = deaf.socketPath;
    await assert.rejects(setting.live.agent.mkdir("/x"), /stopped answering/);
    const { kind, reason } = await setting.live.ended;
    assert.equal(kind, "lost");
    assert.match(reason, /^the agent stopped answering/);
  });

  it("that greets after a silence, but answers nothing else, is the end of the guest too", async () => {
    await using fake = await FakeGuest.listen();
    const setting = await live(fake, patienceMs, 60);
    await assert.rejects(setting.live.agent.mkdir("/x"), /stopped answering/);
    const { kind, reason } = await setting.live.ended;
    assert.equal(kind, "lost");
    assert.match(reason, /it greets, and then says nothing/);
    assert.deepEqual([setting.line.connects, fake.hellos], [2, 2]);
  });

  it("that answers again after a silence is forgiven, each time", async () => {
    let isMute = true;
    const answer = answering();
    await using fake = await FakeGuest.listen({
      onFrame: (frame, guest) => {
        if (!isMute) answer(frame, guest);
      },
    });
    const setting = await live(fake, patienceMs, 60);
    for (let times = 0; times < 3; times++) {
      const { closed } = setting.live.agent;
      isMute = true;
      assert.match((await closed).message, /stopped answering/);
      isMute = false;
      await reachable(setting);
    }
    assert.equal(setting.line.connects, 4);
    setting.live.close();
  });

  it("that breaks the protocol is the end of the guest at once", async () => {
    for (const nonsense of [Buffer.alloc(12, 0xff), Buffer.from([7, 0, 0, 0])]) {
      await using fake = await FakeGuest.listen({ onFrame: answering(Verb.MKDIR) });
      const setting = await live(fake);
      const call = assert.rejects(setting.live.agent.mkdir("/x"), CapsuleError);
      await fake.heard((frame) => verbOf(frame) === Verb.MKDIR);
      if (nonsense.length === 12) fake.say(nonsense);
      else fake.frame(FrameType.RESULT, 1, nonsense);
      await call;
      const { kind, reason } = await setting.live.ended;
      assert.equal(kind, "lost");
      assert.match(reason, /broke the protocol/);
      assert.equal(setting.line.connects, 1);
    }
  });

  it("that is silent because its VM waits for the host's disk is waited for", async () => {
    await using fake = await FakeGuest.listen({ onFrame: answering() });
    await using deaf = await FakeGuest.listen({ deafHellos: 1_000 });
    const setting = await live(fake, 20);
    setting.vm.found = "stopped";
    setting.line.socketPath = deaf.socketPath;
    await cut(setting);
    while (setting.line.connects < 3) await delay(10);
    setting.line.socketPath = fake.socketPath;
    await reachable(setting);
    setting.live.close();
  });
});

it("a guest that will be destroyed is waited for no longer, and never listened to again", async () => {
  await using fake = await FakeGuest.listen({ onFrame: answering(Verb.THAW) });
  const setting = await live(fake);
  const thaw = assert.rejects(setting.live.thaw(), /is being destroyed/);
  await fake.heard((frame) => verbOf(frame) === Verb.THAW);
  setting.live.abandon();
  await thaw;
  await assert.rejects(setting.live.resumeMonitoring(), /is being destroyed/);
  assert.equal(setting.line.connects, 1);
});

it("nor is one that was let go of, whose VM lives on", async () => {
  await using fake = await FakeGuest.listen({ onFrame: answering() });
  const setting = await live(fake);
  setting.live.close();
  await assert.rejects(setting.live.resumeMonitoring(), /was let go of/);
  setting.live.markLost("it could not be set running again");
  assert.equal(await Promise.race([setting.live.ended, "its end is nobody's"]), "its end is nobody's");
  assert.equal(setting.line.connects, 1);
});

describe("freezing", () => {
  it("says whether the processes are frozen", async () => {
    for (const [answer, expected] of [
      [frozen, true],
      [notFrozen, false],
    ] as const) {
      await using fake = await FakeGuest.listen({
        onFrame: (frame, guest) => guest.frame(FrameType.RESULT, frame.stream, answer),
      });
      const setting = await live(fake);
      assert.equal(await freeze(setting.live, 1), expected);
      setting.live.close();
    }
  });

  it("is tried again when some processes were not frozen", async () => {
    let asked = 0;
    await using fake = await FakeGuest.listen({
      onFrame: (frame, guest) => guest.frame(FrameType.RESULT, frame.stream, ++asked < 3 ? notFrozen : frozen),
    });
    const setting = await live(fake);
    assert.equal(await freeze(setting.live, 2), false);
    assert.equal(await freeze(setting.live, 2), true);
    setting.live.close();
  });

  it("is given up when the agent is mute, talks nonsense or cannot be reached", async () => {
    await using mute = await FakeGuest.listen();
    const silent = await live(mute);
    assert.equal(await freeze(silent.live, 1), false);
    silent.live.close();

    await using mad = await FakeGuest.listen({ onFrame: (_frame, guest) => guest.say(Buffer.alloc(50, 0xff)) });
    const raving = await live(mad);
    raving.live.suspendMonitoring();
    assert.equal(await freeze(raving.live, 1), false);
    assert.equal(await freeze(raving.live, 1), false);
    raving.live.close();
  });

  it("answered late does no harm: the guest goes on, and is still listened to", async () => {
    await using fake = await FakeGuest.listen({ onFrame: answering(Verb.FREEZE) });
    const setting = await live(fake);
    setting.live.suspendMonitoring();
    assert.equal(await freeze(setting.live, 1), false);
    const asked = await fake.heard((frame) => verbOf(frame) === Verb.FREEZE);
    fake.frame(FrameType.RESULT, asked.stream, frozen);
    await resumeAfterStop(setting.live);
    await setting.live.agent.probe();
    setting.live.close();
  });
});

it("a VM whose QEMU does not answer, or that waits for the disk, is not fit to be stopped", async () => {
  await using fake = await FakeGuest.listen({ onFrame: answering() });
  const setting = await live(fake);
  await requireRunning(setting.live);
  setting.vm.found = "stopped";
  await assert.rejects(requireRunning(setting.live), { code: "no_space" });
  setting.vm.found = new Error("no answer");
  await assert.rejects(requireRunning(setting.live), /no answer/);
  setting.live.close();
});

describe("the VM's end", () => {
  const ends = [
    [{ kind: "powered_off" }, "powered_off", /powered itself off/],
    [{ kind: "reset" }, "lost", /kernel panicked/],
    [{ kind: "exited" }, "lost", /process ended/],
    [{ kind: "overused", what: "memory: 2 bytes, of 1" }, "lost", /took more than its share of memory: 2 bytes, of 1/],
  ] as const;

  for (const [how, kind, reason] of ends) {
    it(`${how.kind} is told as ${kind}`, async () => {
      await using fake = await FakeGuest.listen({ onFrame: answering() });
      const setting = await live(fake);
      setting.vm.endWith(how);
      const end = await setting.live.ended;
      assert.equal(end.kind, kind);
      assert.match(end.reason, reason);
      assert.equal(setting.line.connects, 1);
    });
  }

  it("while the host freezes it is told when the host listens again, or gives the guest up", async () => {
    for (const after of ["listenAgain", "lose"] as const) {
      await using fake = await FakeGuest.listen({ onFrame: answering() });
      const setting = await live(fake);
      setting.live.suspendMonitoring();
      setting.vm.endWith({ kind: "exited" });
      await setting.vm.ended;
      if (after === "lose") setting.live.markLost("it did not go on");
      else await setting.live.resumeMonitoring();
      assert.match((await setting.live.ended).reason, /process ended/);
    }
  });
});
