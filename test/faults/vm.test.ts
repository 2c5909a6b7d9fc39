/** QEMU is killed or hangs in each state of its capsule: the service reports it soon and does not hang. */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { connectAgent } from "../../src/agent/connection.ts";
import type { StepName } from "../../src/host/steps.ts";
import { Qmp } from "../../src/vmm/qmp.ts";
import type { Reply, TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";
import { assertMarked, mark } from "./marks.ts";
import { World } from "./world.ts";

/** A VM's end is noticed by itself, long before its agent's silence would be. */
const [noticedSec, silenceMs] = [60, 600_000];

let world: World;
before(async () => {
  world = await World.start({
    env: { CAPSULE_SILENCE_MS: String(silenceMs) },
    errors: [
      /"message":"the connection to the guest agent was (closed|lost)"/,
      /"message":"the command's time was over, but the guest did not confirm that it is gone"/,
      /reaching the VM of capsule \S+ took longer than \d+ ms/,
      // Which of its ends is noticed first is the kernel's choice.
      /QMP [a-z-]+: ((read|write) E[A-Z]+|the connection is closed|QMP connection closed)/,
      /the VM has ended: exited/,
    ],
  });
});
after(() => world[Symbol.asyncDispose]());

const call = (capsule: TestCapsule, action: string) => world.client.call("POST", `${capsule.path}/${action}`);

/** A capsule whose VM has just ended is in `error` with a reason, and DELETE removes the rest. */
async function assertFailed(capsule: TestCapsule): Promise<void> {
  const { error_reason } = await capsule.until("error", noticedSec);
  assert.ok(error_reason.length > 5, error_reason);
  await capsule.destroy();
  assert.equal(world.vmPid(capsule.id), undefined);
  assert.ok(!world.folders("capsules").includes(capsule.id));
}

async function assertUsable(capsule: TestCapsule): Promise<void> {
  await assertMarked(capsule);
  await capsule.pause();
  await capsule.resume();
  await assertMarked(capsule);
}

function assertRefused({ status, json, text }: Reply): void {
  assert.equal(status, 502, text);
  assert.equal(json.error.code, "agent_error");
}

describe("QEMU is killed or hangs", { concurrency: 4 }, () => {
  test("hung: a pause fails in time, and the capsule works when QEMU continues", async () => {
    const capsule = await world.client.capsule();
    await mark(capsule);
    await world.signalVm(capsule.id, "SIGSTOP");
    assertRefused(await call(capsule, "pause"));
    assert.equal((await capsule.view()).status, "running");
    await world.signalVm(capsule.id, "SIGCONT");
    await assertUsable(capsule);
    await capsule.destroy();
  });

  test("hung: a capture fails in time, and the capsule works when QEMU continues", async () => {
    const capsule = await world.client.capsule();
    await mark(capsule);
    await world.signalVm(capsule.id, "SIGSTOP");
    assertRefused(await world.client.call("POST", "/v1/snapshots", { json: { sandbox_id: capsule.id } }));
    await world.signalVm(capsule.id, "SIGCONT");
    await assertUsable(capsule);
    await capsule.destroy();
  });

  test("hung: an exec fails soon after its timeout, and the capsule works when QEMU continues", async () => {
    const capsule = await world.client.capsule();
    await mark(capsule);
    await world.signalVm(capsule.id, "SIGSTOP");
    assertRefused(await capsule.exec({ cmd: "true", timeout: 1 }));
    await world.signalVm(capsule.id, "SIGCONT");
    await assertUsable(capsule);
    await capsule.destroy();
  });

  test("hung: DELETE ends it", async () => {
    const capsule = await world.client.capsule();
    await mark(capsule);
    await world.signalVm(capsule.id, "SIGSTOP");
    await capsule.destroy();
    assert.equal(world.vmPid(capsule.id), undefined);
  });

  test("killed while the capsule runs: `error`, and its commands fail without an exit code", async () => {
    const capsule = await world.client.capsule();
    const exec = capsule.exec({ cmd: "sleep", args: ["1000"], timeout: 0 });
    await waitFor("it runs", async () => (await capsule.run("pgrep", ["-x", "sleep"])).exit_code === 0);
    await world.killVm(capsule.id);
    assertRefused(await exec);
    await assertFailed(capsule);
  });
});

interface Killed {
  verb: string;
  /** Steps at which the change fails when its VM is killed. */
  fails: readonly StepName[];
  /** At these it depends on whether the end is noticed before the commit. */
  either: readonly StepName[];
  /** At these the change no longer needs the VM. */
  succeeds: readonly StepName[];
  prepare(): Promise<TestCapsule>;
  change(capsule: TestCapsule): Promise<Reply>;
  failed(reply: Reply, capsule: TestCapsule): Promise<void>;
  succeeded(reply: Reply, capsule: TestCapsule): Promise<void>;
}

async function markedCapsule(): Promise<TestCapsule> {
  const capsule = await world.client.capsule();
  await mark(capsule);
  return capsule;
}

const changes: Killed[] = [
  {
    verb: "resumed",
    fails: ["restore.loaded"],
    either: ["restore.awake"],
    succeeds: ["running.committed", "release.thawed"],
    async prepare() {
      const capsule = await markedCapsule();
      await capsule.pause();
      await world.vmEnded(capsule.id); // so that the kill hits the new VM
      return capsule;
    },
    change: (capsule) => call(capsule, "resume"),
    async failed(reply, capsule) {
      assertRefused(reply);
      assert.equal((await capsule.view()).status, "paused");
      await capsule.resume();
      await assertMarked(capsule);
    },
    async succeeded(reply, capsule) {
      assert.equal(reply.status, 200, reply.text);
      await assertFailed(capsule);
    },
  },
  {
    verb: "paused",
    fails: ["save.frozen", "save.stopped"],
    either: ["save.written"],
    succeeds: ["save.published", "paused.committed"],
    prepare: markedCapsule,
    change: (capsule) => call(capsule, "pause"),
    async failed(reply, capsule) {
      assertRefused(reply);
      await assertFailed(capsule);
    },
    async succeeded(reply, capsule) {
      assert.equal(reply.status, 200, reply.text);
      await capsule.resume();
      await assertMarked(capsule);
    },
  },
  {
    verb: "captured",
    fails: ["save.frozen", "save.stopped"],
    either: ["save.written"],
    succeeds: ["save.published", "capture.written", "capture.published", "captured.committed"],
    prepare: markedCapsule,
    change: (capsule) => world.client.call("POST", "/v1/snapshots", { json: { sandbox_id: capsule.id, name: "made" } }),
    async failed(reply, capsule) {
      assertRefused(reply);
      assert.deepEqual(await world.snapshots(), []);
      await assertFailed(capsule);
    },
    async succeeded(reply, capsule) {
      assert.equal(reply.status, 201, reply.text);
      assert.equal((await world.client.call("GET", capsule.path)).status, 404);
      await assertMarked(await world.client.capsule({ template: "made" }));
    },
  },
];

describe("QEMU is killed at a named step", { concurrency: false }, () => {
  for (const { verb, fails, either, succeeds, prepare, change, failed, succeeded } of changes) {
    for (const step of [...fails, ...either, ...succeeds]) {
      test(`${step} while the capsule is ${verb}`, async () => {
        const { id } = await prepare();
        await world.restart("SIGTERM", `${step}/stop`);
        const capsule = world.capsule(id);
        const reply = await world.atStep(
          () => change(capsule),
          () => world.killVm(id),
        );
        const mayFail = fails.includes(step) || (either.includes(step) && reply.status === 502);
        await (mayFail ? failed : succeeded)(reply, capsule);
        await world.assertConsistent();
        await world.assertNoResidue();
      });
    }
  }

  for (const step of ["restore.loaded", "restore.awake", "running.committed"] as const) {
    test(`${step} while the capsule is created: \`error\``, async () => {
      await world.restart("SIGTERM", `${step}/stop`);
      const create = async () => {
        const { json } = await world.client.expect(201, "POST", "/v1/capsules", { json: {} });
        await world.client.call("GET", `/v1/capsules/${json.id}?wait=running`);
        return world.capsule(json.id);
      };
      const capsule = await world.atStep(create, () => world.killVm(world.vms()[0]!));
      await assertFailed(capsule);
      await world.assertNoResidue();
    });
  }
});

/** Runs a script that ends the guest; resolves when it has ended and QEMU is stopped. Its sockets have no other client while the server is down. */
async function endGuest({ id }: TestCapsule, script: string): Promise<void> {
  const folder = `${world.server.dataDir}/capsules/${id}`;
  const agent = await connectAgent(`${folder}/agent.sock`, { deadlineMs: 60_000 });
  await agent.start({ cmd: "bash", args: ["-c", script] }).catch(() => {}); // the answer may be lost with the guest
  const qmp = await Qmp.connect(`${folder}/qmp.sock`, () => {}, 60_000);
  await waitFor("the guest has ended", async () => {
    const { status } = (await qmp.command("query-status")) as { status: string };
    return status === "shutdown" || status === "guest-panicked";
  });
  qmp.close();
  agent.close();
}

test("ends of VMs while the server was down are detected at its start", async () => {
  const [off, panicked, killed, hung, fine] = await Promise.all([1, 2, 3, 4, 5].map(() => world.client.capsule()));
  assert.ok(off && panicked && killed && hung && fine);
  await mark(fine);
  for (const each of [off, panicked, killed, hung]) await each.sh(`echo ${each.id} > /root/kept; sync`);
  await world.server.kill("SIGKILL");
  await world.signalVm(killed.id, "SIGKILL");
  await world.signalVm(hung.id, "SIGSTOP");
  const panic = "echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger";
  await Promise.all([endGuest(off, "poweroff"), endGuest(panicked, panic)]);
  await world.restart("SIGKILL");
  const views = new Map((await world.views()).map((view) => [view.id, view]));
  assert.equal(views.get(off.id)?.status, "stopped");
  for (const { id } of [killed, hung]) {
    assert.equal(views.get(id)?.status, "error");
    assert.ok((views.get(id)?.error_reason ?? "").length > 5);
  }
  await assertUsable(world.capsule(fine.id));
  await world.capsule(panicked.id).until("running");
  for (const { id } of [off, killed, hung]) await world.capsule(id).start();
  for (const { id } of [off, panicked, killed, hung])
    assert.equal(await world.capsule(id).sh("cat /root/kept"), id, "its disk is there");
});

test("in the end rows, VMs and folders are consistent, and nothing is left", async () => {
  await world.assertConsistent();
  await world.assertNoResidue();
});
