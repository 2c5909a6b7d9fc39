/** The states of a guest: lost connections, silent and invalid agents, late answers, and VMs that end. */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { FakeGuest, type HostFrame } from "../../test/fakes/fake-guest.ts";
import { FakeVm } from "../../test/fakes/fake-vm.ts";
import { waitFor } from "../../test/wait-for.ts";
import { connectAgent } from "../agent/connection.ts";
import { FrameType } from "../agent/frames.ts";
import { emptyRecord, Verb } from "../agent/protocol.ts";
import { RecordWriter } from "../agent/records.ts";
import { CapsuleError } from "../wire/errors.ts";
import { freeze, requireRunning, resumeAfterStop } from "./checkpoint/quiesce.ts";
import { type Connect, identityOf, LiveGuest } from "./guest.ts";

const waitMs = 60_000;
const freezeMs = 2_000;
const going = new AbortController().signal;
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
  line: { socketPath: string; connects: number; protocol: number | undefined; onRefused: () => void };
}

async function live(fake: FakeGuest, reconnectMs = waitMs, silenceMs = waitMs): Promise<Setting> {
  const vm = new FakeVm(fake.socketPath);
  const line: Setting["line"] = { socketPath: fake.socketPath, connects: 0, protocol: undefined, onRefused() {} };
  const connect: Connect = (_socket, deadlineMs, signal, protocol) => {
    line.connects++;
    line.protocol = protocol;
    const agent = connectAgent(line.socketPath, { deadlineMs, signal, silenceMs });
    agent.catch(() => line.onRefused());
    return agent;
  };
  const agent = await connect(fake.socketPath, waitMs);
  const image = { name: "minimal", hash: "1" };
  const capsule = { parent: "bases/b", parentSha256: null, image, machine: vm.spec.machine };
  return { fake, vm, live: new LiveGuest("cl-x", capsule, vm, agent, { connect, reconnectMs }), line };
}

const isUnreachable = (error: unknown) =>
  error instanceof CapsuleError && error.code === "agent_error" && /cannot be reached/.test(error.message);

/** Breaks the connection and waits until the guest has noticed. */
async function cut({ fake, live }: Setting): Promise<void> {
  const { closed } = live.agent;
  fake.connection?.destroy();
  await closed;
}

/** Resolves when the agent can be reached. */
async function reachable({ live }: Setting): Promise<void> {
  await waitFor("the agent can be reached", async () => {
    try {
      await live.agent.probe();
      return true;
    } catch (error) {
      assert.ok(isUnreachable(error) || error instanceof CapsuleError, String(error));
      return false;
    }
  });
}

it("an ended guest stays ended: no later event changes its state or is reported", async () => {
  await using fake = await FakeGuest.listen({ onFrame: answering() });
  const setting = await live(fake);
  setting.live.markLost("it did not resume");
  setting.vm.endWith({ kind: "powered_off" });
  await setting.vm.ended;
  setting.live.suspendMonitoring();
  await assert.rejects(setting.live.resumeMonitoring(), /has ended: it did not resume/);
  fake.connection?.destroy();
  assert.deepEqual(await setting.live.ended, { kind: "lost", reason: "it did not resume" });
  assert.equal(setting.line.connects, 1);
});

it("monitoring that resumes during an attempt to reconnect waits for this attempt", async () => {
  await using fake = await FakeGuest.listen({ onFrame: answering() });
  const setting = await live(fake);
  await cut(setting);
  await setting.live.resumeMonitoring();
  await setting.live.agent.probe();
  assert.equal(setting.line.connects, 2);
  assert.equal(setting.line.protocol, setting.live.agent.protocol, "the version of the lost connection");
  setting.live.close();
});

it("a parked guest is unparked with new randomness before any other command", async () => {
  await using fake = await FakeGuest.listen({ onFrame: answering() });
  const { live: guest, vm } = await live(fake);
  await guest.park();
  assert.equal(vm.found, "stopped");
  const [first, second] = [identityOf("cl-x"), identityOf("cl-x")];
  assert.notDeepEqual(first.entropy, second.entropy, "the random bytes differ each time");
  await guest.unpark(second);
  assert.equal(vm.found, "running");
  const opened = fake.frames.filter((frame) => verbOf(frame) !== 0);
  assert.deepEqual(opened.map(verbOf), [Verb.FREEZE, Verb.WAKE]);
  assert.ok(opened[1]!.payload.includes(Buffer.from(second.entropy)), "the agent receives them");
  guest.close();
});

describe("the connection", () => {
  it("is made anew when it is lost; meanwhile the agent cannot be reached", async () => {
    await using fake = await FakeGuest.listen({ onFrame: answering() });
    const setting = await live(fake);
    await cut(setting);
    assert.throws(() => setting.live.agent, isUnreachable);
    await reachable(setting);
    assert.equal(setting.line.connects, 2);
    setting.live.close();
  });

  it("when made anew, repeats a THAW that was lost", async () => {
    await using fake = await FakeGuest.listen({ onFrame: answering(), awake: false });
    const setting = await live(fake);
    await setting.live.thaw();
    fake.frames.length = 0;
    await cut(setting);
    await fake.heard((frame) => verbOf(frame) === Verb.THAW);
    setting.live.close();
  });

  it("when made anew, does not thaw a guest that was not released", async () => {
    await using fake = await FakeGuest.listen({ onFrame: answering(), awake: false });
    const setting = await live(fake);
    await cut(setting);
    await reachable(setting);
    assert.ok(!fake.frames.some((frame) => verbOf(frame) === Verb.THAW));
    setting.live.close();
  });

  it("is not made anew while monitoring is suspended, and once when it resumes", async () => {
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

  it("suspending monitoring ends an attempt to reconnect", async () => {
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

  it("when closed by the host, rejects calls in flight with the reason and reports no end", async () => {
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
  it("that stays silent is reported as lost", async () => {
    await using fake = await FakeGuest.listen({ onFrame: answering(Verb.MKDIR, Verb.PROBE) });
    await using deaf = await FakeGuest.listen({ deafHellos: 1_000 });
    const setting = await live(fake, 50, 50);
    setting.line.socketPath = deaf.socketPath;
    await assert.rejects(setting.live.agent.mkdir("/x"), /stopped answering/);
    const { kind, reason } = await setting.live.ended;
    assert.equal(kind, "lost");
    assert.match(reason, /^the agent stopped answering/);
  });

  it("whose connection ends shortly before its VM is reported with the VM's end", async () => {
    await using fake = await FakeGuest.listen();
    const setting = await live(fake);
    setting.line.socketPath = "/nowhere/agent.sock"; // as when QEMU is gone: refused at once
    setting.line.onRefused = () => setImmediate(() => setting.vm.endWith({ kind: "exited" }));
    await cut(setting);
    assert.deepEqual(await setting.live.ended, { kind: "lost", reason: "the VM's process ended" });
  });

  it("that answers only the handshake after a silence is reported as lost", async () => {
    await using fake = await FakeGuest.listen();
    const setting = await live(fake, waitMs, 60);
    await assert.rejects(setting.live.agent.mkdir("/x"), /stopped answering/);
    const { kind, reason } = await setting.live.ended;
    assert.equal(kind, "lost");
    assert.match(reason, /it greets, and then says nothing/);
    assert.equal(setting.line.connects, 2);
    assert.ok(fake.hellos >= 2, `${fake.hellos}`); // a HELLO is repeated where this process has to wait for its CPU
  });

  it("that answers again after a silence is kept, each time", async () => {
    let isMute = true;
    const answer = answering();
    await using fake = await FakeGuest.listen({
      onFrame: (frame, guest) => {
        if (!isMute) answer(frame, guest);
      },
    });
    const setting = await live(fake, waitMs, 60);
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

  it("that breaks the protocol is reported as lost at once", async () => {
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

  it("that is silent because its VM waits for the host's disk is not given up", async () => {
    await using fake = await FakeGuest.listen({ onFrame: answering() });
    await using deaf = await FakeGuest.listen({ deafHellos: 1_000 });
    const setting = await live(fake, 100);
    setting.vm.found = "stopped";
    setting.line.socketPath = deaf.socketPath;
    await cut(setting);
    await waitFor("it has tried three times", async () => setting.line.connects >= 3);
    setting.line.socketPath = fake.socketPath;
    await reachable(setting);
    setting.live.close();
  });
});

it("an abandoned guest rejects calls in flight and is never monitored again", async () => {
  await using fake = await FakeGuest.listen({ onFrame: answering(Verb.THAW) });
  const setting = await live(fake);
  const thaw = assert.rejects(setting.live.thaw(), /is being destroyed/);
  await fake.heard((frame) => verbOf(frame) === Verb.THAW);
  setting.live.abandon();
  await thaw;
  await assert.rejects(setting.live.resumeMonitoring(), /is being destroyed/);
  assert.equal(setting.line.connects, 1);
});

it("a closed guest is never monitored again and reports no end", async () => {
  await using fake = await FakeGuest.listen({ onFrame: answering() });
  const setting = await live(fake);
  setting.live.close();
  await assert.rejects(setting.live.resumeMonitoring(), /was released by this daemon/);
  setting.live.markLost("it could not be set running again");
  assert.equal(await Promise.race([setting.live.ended, "not reported"]), "not reported");
  assert.equal(setting.line.connects, 1);
});

describe("freezing", () => {
  it("reports whether the processes are frozen", async () => {
    for (const [answer, expected] of [
      [frozen, true],
      [notFrozen, false],
    ] as const) {
      await using fake = await FakeGuest.listen({
        onFrame: (frame, guest) => guest.frame(FrameType.RESULT, frame.stream, answer),
      });
      const setting = await live(fake);
      assert.equal(await freeze(setting.live, "pause", going), expected);
      setting.live.close();
    }
  });

  it("is repeated for a capture until all processes are frozen", async () => {
    let asked = 0;
    await using fake = await FakeGuest.listen({
      onFrame: (frame, guest) => guest.frame(FrameType.RESULT, frame.stream, ++asked < 4 ? notFrozen : frozen),
    });
    const setting = await live(fake);
    assert.equal(await freeze(setting.live, "pause", going), false);
    assert.equal(await freeze(setting.live, "capture", going), true);
    assert.equal(asked, 4);
    setting.live.close();
  });

  it("fails when the agent does not answer, breaks the protocol or cannot be reached", async (t) => {
    await using mute = await FakeGuest.listen();
    const silent = await live(mute);
    t.mock.timers.enable({ apis: ["setTimeout"] });
    const unanswered = freeze(silent.live, "pause", going);
    t.mock.timers.tick(freezeMs);
    assert.equal(await unanswered, false);
    t.mock.timers.reset();
    silent.live.close();

    await using mad = await FakeGuest.listen({ onFrame: (_frame, guest) => guest.say(Buffer.alloc(50, 0xff)) });
    const raving = await live(mad);
    raving.live.suspendMonitoring();
    assert.equal(await freeze(raving.live, "pause", going), false);
    assert.equal(await freeze(raving.live, "pause", going), false);
    raving.live.close();
  });

  it("a late answer is harmless: the guest is resumed and still monitored", async (t) => {
    await using fake = await FakeGuest.listen({ onFrame: answering(Verb.FREEZE) });
    const setting = await live(fake);
    setting.live.suspendMonitoring();
    t.mock.timers.enable({ apis: ["setTimeout"] });
    const unanswered = freeze(setting.live, "pause", going);
    t.mock.timers.tick(freezeMs);
    assert.equal(await unanswered, false);
    t.mock.timers.reset();
    const asked = await fake.heard((frame) => verbOf(frame) === Verb.FREEZE);
    fake.frame(FrameType.RESULT, asked.stream, frozen);
    await resumeAfterStop(setting.live);
    await setting.live.agent.probe();
    setting.live.close();
  });
});

it("a VM whose QEMU does not answer, or that waits for the disk, must not be stopped", async () => {
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
    [{ kind: "reset" }, "reset", /kernel panicked/],
    [{ kind: "exited" }, "lost", /process ended/],
    [{ kind: "overused", what: "memory: 2 bytes, of 1" }, "lost", /took more than its share of memory: 2 bytes, of 1/],
  ] as const;

  for (const [how, kind, reason] of ends) {
    it(`${how.kind} is reported as ${kind}`, async () => {
      await using fake = await FakeGuest.listen({ onFrame: answering() });
      const setting = await live(fake);
      setting.vm.endWith(how);
      const end = await setting.live.ended;
      assert.equal(end.kind, kind);
      assert.match(end.reason, reason);
      assert.equal(setting.line.connects, 1);
    });
  }

  it("during suspended monitoring is reported when monitoring resumes, or the guest is marked as lost", async () => {
    for (const after of ["resumeMonitoring", "markLost"] as const) {
      await using fake = await FakeGuest.listen({ onFrame: answering() });
      const setting = await live(fake);
      setting.live.suspendMonitoring();
      setting.vm.endWith({ kind: "exited" });
      await setting.vm.ended;
      if (after === "markLost") setting.live.markLost("it did not go on");
      else await setting.live.resumeMonitoring();
      assert.match((await setting.live.ended).reason, /process ended/);
    }
  });
});
