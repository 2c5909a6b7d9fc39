/** QEMU is killed or hangs, in each state of its capsule: the service says so soon, and is never stuck. */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { Qmp } from "../../src/vmm/qmp.ts";
import type { Reply, TestCapsule } from "../client.ts";
import { eventually } from "../conformance/eventually.ts";
import { Random } from "../conformance/random.ts";
import { isLong } from "./form.ts";
import { assertFurnished, furnish } from "./furniture.ts";
import { World } from "./world.ts";

/** The rule is one second; a test machine may be busy with other VMs. */
const noticedMs = 3_000;
const rounds = isLong ? 10 : 2;

let world: World;
before(async () => {
  world = await World.start();
});
after(() => world[Symbol.asyncDispose]());

const call = (capsule: TestCapsule, action: string) => world.client.call("POST", `${capsule.path}/${action}`);

/** Of a capsule whose VM has just ended: in `error` with a reason, and DELETE takes the rest away. */
async function assertFailed(capsule: TestCapsule): Promise<void> {
  const endedMs = performance.now();
  const { error_reason } = await capsule.until("error");
  const afterMs = performance.now() - endedMs;
  assert.ok(afterMs < noticedMs, `noticed after ${afterMs} ms`);
  assert.ok(error_reason.length > 5, error_reason);
  await capsule.destroy();
  assert.equal(world.vmPid(capsule.id), undefined);
  assert.ok(!world.folders("capsules").includes(capsule.id));
}

async function assertUsable(capsule: TestCapsule): Promise<void> {
  await assertFurnished(capsule);
  await capsule.pause();
  await capsule.resume();
  await assertFurnished(capsule);
}

function assertRefused({ status, json, text }: Reply): void {
  assert.equal(status, 502, text);
  assert.equal(json.error.code, "agent_error");
}

describe("QEMU is killed or hangs", { concurrency: 4 }, () => {
  test("hung: a pause is given up in time, and harmed nothing: when QEMU goes on, so does the capsule", async () => {
    const capsule = await world.client.capsule();
    await furnish(capsule);
    await world.signalVm(capsule.id, "SIGSTOP");
    assertRefused(await call(capsule, "pause"));
    assert.equal((await capsule.view()).status, "running");
    await world.signalVm(capsule.id, "SIGCONT");
    await assertUsable(capsule);
    await capsule.destroy();
  });

  test("hung: so is a capture", async () => {
    const capsule = await world.client.capsule();
    await furnish(capsule);
    await world.signalVm(capsule.id, "SIGSTOP");
    assertRefused(await world.client.call("POST", "/v1/snapshots", { json: { sandbox_id: capsule.id } }));
    await world.signalVm(capsule.id, "SIGCONT");
    await assertUsable(capsule);
    await capsule.destroy();
  });

  test("hung: an exec ends in an error soon after its timeout, and the capsule goes on with QEMU", async () => {
    const capsule = await world.client.capsule();
    await furnish(capsule);
    await world.signalVm(capsule.id, "SIGSTOP");
    assertRefused(await capsule.exec({ cmd: "true", timeout: 1 }));
    await world.signalVm(capsule.id, "SIGCONT");
    await assertUsable(capsule);
    await capsule.destroy();
  });

  test("hung: DELETE ends it", async () => {
    const capsule = await world.client.capsule();
    await furnish(capsule);
    await world.signalVm(capsule.id, "SIGSTOP");
    await capsule.destroy();
    assert.equal(world.vmPid(capsule.id), undefined);
  });

  test("killed while the capsule runs: `error` within a second, and commands in it get no made-up exit", async () => {
    const capsule = await world.client.capsule();
    const exec = capsule.exec({ cmd: "sleep", args: ["1000"], timeout: 0 });
    await eventually("it runs", async () => (await capsule.run("pgrep", ["-x", "sleep"])).exit_code === 0);
    await world.killVm(capsule.id);
    await assertFailed(capsule);
    assertRefused(await exec);
  });

  test("killed while the capsule is created: `error`, or it had just begun to run", async () => {
    for (let round = 0; round < rounds; round++) {
      const { json } = await world.client.expect(201, "POST", "/v1/capsules", { json: {} });
      await world.killVm(json.id);
      await assertFailed(world.capsule(json.id));
    }
  });

  test("killed while the capsule is resumed: still paused and as good as before, or it had just begun to run", async () => {
    for (let round = 0; round < rounds; round++) {
      const capsule = await world.client.capsule();
      await furnish(capsule);
      await capsule.pause();
      await world.vmEnded(capsule.id); // it is the new one that is killed
      const resuming = call(capsule, "resume");
      await world.signalVm(capsule.id, "SIGKILL");
      const reply = await resuming;
      if (reply.status === 200) {
        await assertFailed(capsule);
        continue;
      }
      assertRefused(reply);
      assert.equal((await capsule.view()).status, "paused");
      await capsule.resume();
      await assertFurnished(capsule);
      await capsule.destroy();
    }
  });

  test("killed while the capsule is paused: `error`, or the checkpoint was complete and is good", async (t) => {
    const random = new Random(t);
    for (let round = 0; round < rounds; round++) {
      const capsule = await world.client.capsule();
      await furnish(capsule);
      await capsule.sh("head -c 30000000 /dev/urandom > /dev/shm/ballast");
      const pausing = call(capsule, "pause");
      await delay(random.below(150)); // anywhere in it
      world.killVmIfAny(capsule.id);
      const reply = await pausing;
      if (reply.status === 200) {
        await capsule.resume();
        await assertFurnished(capsule);
        await capsule.destroy();
      } else {
        assertRefused(reply);
        await assertFailed(capsule);
      }
    }
  });

  test("killed while the capsule is captured: `error`, or all that the template needs was there", async (t) => {
    const random = new Random(t);
    for (let round = 0; round < rounds; round++) {
      const capsule = await world.client.capsule();
      await furnish(capsule);
      const name = `round-${round}`;
      const capturing = world.client.call("POST", "/v1/snapshots", { json: { sandbox_id: capsule.id, name } });
      await delay(random.below(600)); // anywhere in it
      world.killVmIfAny(capsule.id);
      const reply = await capturing;
      if (reply.status === 201) {
        assert.equal((await world.client.call("GET", capsule.path)).status, 404);
        const made = await world.client.capsule({ template: name });
        await assertFurnished(made);
        await made.destroy();
      } else {
        assertRefused(reply);
        assert.deepEqual(await world.snapshots(), []);
        await assertFailed(capsule);
      }
      await world.client.call("DELETE", `/v1/snapshots/${name}`);
    }
  });
});

/** Resolves when the guest has ended and QEMU stands still. The control socket is free while the server is away. */
async function guestEnded({ id }: TestCapsule): Promise<void> {
  // Through a descriptor of the folder: a socket's path is short.
  const qmp = await Qmp.connect(`${world.server.dataDir}/capsules/${id}/qmp.sock`, () => {}, 10_000);
  await eventually("the guest has ended", async () => {
    const { status } = (await qmp.command("query-status")) as { status: string };
    return status === "shutdown" || status === "guest-panicked";
  });
  qmp.close();
}

test("what happened while the server was away is found out at its start", async () => {
  const [off, panicked, killed, hung, fine] = await Promise.all([1, 2, 3, 4, 5].map(() => world.client.capsule()));
  assert.ok(off && panicked && killed && hung && fine);
  await furnish(fine);
  const later = (capsule: TestCapsule, script: string) =>
    capsule.exec({
      cmd: "bash",
      args: ["-c", `until [ -e /run/now ]; do sleep 0.1; done; ${script}`],
      background: true,
    });
  await later(off, "poweroff");
  await later(panicked, "echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger");
  for (const capsule of [off, panicked])
    await capsule.run("bash", ["-c", "(sleep 1; touch /run/now) >/dev/null 2>&1 &"]);
  await world.server.kill("SIGKILL");
  await world.signalVm(killed.id, "SIGKILL");
  await world.signalVm(hung.id, "SIGSTOP");
  await Promise.all([guestEnded(off), guestEnded(panicked)]);
  await world.restart("SIGKILL");
  const views = new Map((await world.views()).map((view) => [view.id, view]));
  assert.equal(views.get(off.id)?.status, "stopped");
  for (const { id } of [panicked, killed, hung]) {
    assert.equal(views.get(id)?.status, "error");
    assert.ok((views.get(id)?.error_reason ?? "").length > 5);
  }
  await assertUsable(world.capsule(fine.id));
});

test("in the end rows, VMs and folders tell one story, and nothing is left", async () => {
  await world.assertOneStory();
  await world.assertNoResidue();
});
