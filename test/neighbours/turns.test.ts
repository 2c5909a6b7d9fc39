/**
 * Another team's starts and pauses beside guests that say nothing and boots that do not end. There is one start slot, and what is
 * silent stays so for longer than this test runs: whatever waited for it would not be answered.
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import type { Client, TestCapsule } from "../client.ts";
import { mute } from "../faults/muted.ts";
import { World } from "../faults/world.ts";
import { waitFor, within } from "../wait-for.ts";

const foreverMs = "3600000";
const silentCount = 3;
/** None of them has a base yet. */
const newShapes = [131, 138, 145, 152].map((memory_mb) => ({ memory_mb }));

let world: World;
let quiet: Client;
before(async () => {
  const env = {
    CAPSULE_CONCURRENT_STARTS: "1",
    CAPSULE_WAKE_DEADLINE_MS: foreverMs,
    CAPSULE_BOOT_DEADLINE_MS: foreverMs,
  };
  world = await World.start({ env });
  quiet = world.client.as(await world.server.createKey("quiet"));
});
after(() => world[Symbol.asyncDispose]());

/** A paused capsule of the other team is resumed, used and paused; then one is created. */
async function useAll(capsule: TestCapsule): Promise<void> {
  await within("the resume is answered", capsule.resume());
  assert.equal(await capsule.sh("echo runs"), "runs");
  await within("the pause is answered", capsule.pause());
  await using created = await within("the create is answered", quiet.capsule());
  assert.equal(await created.sh("echo new"), "new");
}

async function paused(): Promise<TestCapsule> {
  const capsule = await quiet.capsule();
  await capsule.pause();
  return capsule;
}

test("guests whose agents are waited for hold up no other team", { timeout: 600_000 }, async () => {
  const bystander = await paused();
  const silent = await Promise.all(Array.from({ length: silentCount }, async () => mute(await world.client.capsule())));
  await Promise.all(silent.map((capsule) => capsule.pause()));
  await Promise.all(silent.map(({ id }) => world.vmEnded(id)));
  const resumes = silent.map(({ path }) => world.client.call("POST", `${path}/resume`));
  await waitFor("a silent one is loaded", () => silent.some(({ id }) => world.vmPid(id) !== undefined));
  await useAll(bystander);
  await Promise.all(silent.map((capsule) => capsule.destroy()));
  for (const { status } of await Promise.all(resumes)) assert.equal(status, 404, "it was waited for until its DELETE");
  await bystander.destroy();
});

test("capsules of ever new shapes hold up no other team", { timeout: 600_000 }, async () => {
  const bystander = await paused();
  const made = await Promise.all(newShapes.map((json) => world.client.expect(201, "POST", "/v1/capsules", { json })));
  const stopped = await waitFor("a base is booted", () => {
    const pids = bootingPids();
    for (const pid of pids) process.kill(pid, "SIGSTOP");
    return pids.length > 0 && pids;
  });
  assert.equal(stopped.length, 1, "of one team one at a time");
  await useAll(bystander);
  assert.deepEqual(bootingPids(), stopped);
  for (const pid of stopped) process.kill(pid, "SIGCONT");
  for (const { json } of made) await world.client.expect(204, "DELETE", `/v1/capsules/${json.id}`);
  await waitFor("no base is made", () => !world.folders("work").some((name) => name.startsWith("base-")));
  await bystander.destroy();
});

/** QEMUs that boot a base, without the programs that execute them. */
function bootingPids(): number[] {
  const names = world.vms().filter((name) => name.startsWith("base-"));
  return names.flatMap((name) => world.pidsOf(name)).filter((pid) => commOf(pid).startsWith("qemu"));
}

function commOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/comm`, "utf8");
  } catch {
    return ""; // it has just ended
  }
}

test("in the end rows, VMs and folders are consistent, and nothing is left", async () => {
  await world.assertConsistent();
  await world.assertNoResidue();
});
