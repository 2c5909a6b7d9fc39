/** The order of the host's steps, with a VM that is no process. Real ones: test/conformance and test/faults. */
import assert from "node:assert/strict";
import { existsSync, mkdirSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { agent, hostOfPaused, id } from "../../test/fakes/paused-host.ts";
import type { Agent } from "../agent/agent.ts";
import { encodeMachine } from "./disk/machine-record.ts";

test("a start reports a damaged folder once, and removes nothing that it may need", async (t) => {
  const { host, paths, damages, trimmed } = await hostOfPaused(t);
  const builds = ["1", "2", "3"].map((digit) => join(paths.data, "images/other", digit.repeat(64)));
  for (const build of builds) {
    mkdirSync(build, { recursive: true });
    utimesSync(build, 1_000, 1_000);
  }
  writeFileSync(join(paths.capsule(id), "capsule.json"), "");
  await host.sweep();
  assert.deepEqual(damages.splice(0), [paths.capsule(id)]);
  assert.ok([paths.base("b"), ...builds].every(existsSync));
  assert.deepEqual(trimmed, []);

  rmSync(paths.capsule(id), { recursive: true });
  await host.sweep();
  assert.deepEqual(damages, []);
  assert.ok(!existsSync(paths.base("b")), "nothing stands on it");
  assert.equal(builds.filter(existsSync).length, 2, "the newest stay for a rollback");
  assert.deepEqual(trimmed, [0], "saved machines are left");
});

test("the machine of its VMs is shown as checkpoints name it, but for a shape", async (t) => {
  const { host, vm } = await hostOfPaused(t);
  const { vcpus, memory_mb, ...named } = encodeMachine(vm.spec.machine);
  assert.deepEqual([typeof vcpus, typeof memory_mb], ["number", "number"]);
  assert.deepEqual(host.machine(), named);
  const fields = ["accelerator", "cpu", "cpu_features", "devices", "qemu", "qemu_build", "tsc_khz"];
  assert.deepEqual(Object.keys(named).toSorted(), fields);
});

test("a capsule that is destroyed while it is resumed is removed on a full disk too", async (t) => {
  const kept = await hostOfPaused(t);
  const resumed = await kept.host.restore(id, { owner: "a team" });
  rmSync(kept.paths.work, { recursive: true }); // the new time of the disk layer cannot be recorded
  await assert.rejects(kept.host.end(resumed), { code: "ENOENT" }, "of a capsule that stays it has to be");

  const { host, paths, vm } = await hostOfPaused(t);
  await host.restore(id, { owner: "a team" });
  rmSync(paths.work, { recursive: true });
  await host.remove(id);
  assert.ok(!existsSync(paths.capsule(id)));
  assert.ok(vm.isDetached, "killed");
});

test("a VM is measured while its agent is waited for, as a guest, and no longer when it has ended", async (t) => {
  const waking = Promise.withResolvers<void>();
  const answer = Promise.withResolvers<Agent>();
  const { host } = await hostOfPaused(t, () => {
    waking.resolve();
    return answer.promise;
  });
  const measured = async () => [...(await host.memoryByCapsule()).keys()];
  const restoring = host.restore(id, { owner: "a team" });
  assert.deepEqual(await measured(), []);
  await waking.promise;
  assert.deepEqual(await measured(), [id]);
  answer.resolve(agent);
  const guest = await restoring;
  assert.deepEqual(await measured(), [id]);
  await host.end(guest);
  assert.deepEqual(await measured(), []);

  const silent = await hostOfPaused(t, () => Promise.reject(new Error("no answer")));
  await assert.rejects(silent.host.restore(id, { owner: "a team" }));
  assert.deepEqual([...(await silent.host.memoryByCapsule()).keys()], []);
});
