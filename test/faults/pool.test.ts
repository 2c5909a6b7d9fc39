/** Warm capsules behave like new ones, and none is left behind. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import type { TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";
import { World } from "./world.ts";

const atOnce = 4;
/** Time that warm capsules wait before they are taken. */
const parkedMs = 6_000;
const waitMs = 240_000;

let world: World;
before(async () => {
  world = await World.start({ env: { CAPSULE_POOL: "auto", CAPSULE_POOL_MIN: "1" } });
});
after(() => world[Symbol.asyncDispose]());

/** VMs of warm capsules, when the pool is full with at least `count`. */
async function ready(count: number): Promise<string[]> {
  const isFull = async () => {
    const { ready, target } = (await world.health()).pool;
    return ready >= target && ready >= count;
  };
  await waitFor(`${count} are ready`, isFull, { deadlineMs: waitMs });
  const running = new Set((await world.views()).map(({ id }) => id));
  return world.vms().filter((id) => !running.has(id));
}

/** The base or template that a capsule was made from. */
function originOf(id: string): string {
  return JSON.parse(readFileSync(join(world.server.dataDir, "capsules", id, "capsule.json"), "utf8")).origin;
}

/** Creates `count` capsules at once and waits until they run. */
async function createTogether(count: number, body: Record<string, unknown> = {}): Promise<TestCapsule[]> {
  const created = await Promise.all(
    Array.from({ length: count }, () => world.client.expect(201, "POST", "/v1/capsules", { json: body })),
  );
  const capsules = created.map(({ json }) => world.capsule(json.id));
  await Promise.all(capsules.map((capsule) => capsule.until("running")));
  return capsules;
}

const destroyAll = (capsules: TestCapsule[]) => Promise.all(capsules.map((capsule) => capsule.destroy()));

/** Makes the pool keep `count` capsules of a template and shape. */
async function want(count: number, body: Record<string, unknown> = {}): Promise<void> {
  await destroyAll(await createTogether(count, body));
}

test("capsules created at once from the pool share no secrets, and their clocks are right", async () => {
  await want(atOnce);
  const waiting = await ready(atOnce);
  await delay(parkedMs); // that their clocks fall behind
  const capsules = await createTogether(atOnce);
  for (const { id } of capsules) assert.ok(waiting.includes(id), `${id} was not made ahead of time`);
  const tell = "head -c16 /dev/urandom | base64; cat /etc/machine-id; hostname; cat /etc/hostname; date +%s%3N";
  const told = await Promise.all(
    capsules.map(async (capsule) => {
      const began = Date.now();
      const lines = (await capsule.sh(tell)).split("\n");
      const at = Number(lines.pop());
      const offMs = at < began ? at - began : Math.max(0, at - Date.now());
      return { id: capsule.id, lines, offMs };
    }),
  );
  // The time is sent, and on a busy machine it arrives late; a clock that was not set is behind by the whole time.
  const offs = told.map(({ offMs }) => Math.abs(offMs));
  assert.ok(Math.max(...offs) < parkedMs / 2, `the clocks are off by ${offs} ms`);
  for (const { id, lines } of told) assert.deepEqual(lines.slice(2), [id, id]);
  for (const field of [0, 1]) assert.equal(new Set(told.map(({ lines }) => lines[field])).size, atOnce);
  await destroyAll(capsules);
});

test("a capsule from the pool can be paused, resumed and destroyed", async () => {
  const waiting = await ready(1);
  const [capsule] = await createTogether(1);
  assert.ok(capsule !== undefined && waiting.includes(capsule.id));
  await capsule.sh("echo kept > /root/file; (sleep 1000 & echo $! > /run/pid)");
  await capsule.pause();
  await world.vmEnded(capsule.id);
  await capsule.resume();
  assert.equal(await capsule.sh("cat /root/file; kill -0 $(cat /run/pid) && echo alive"), "kept\nalive");
  await capsule.destroy();
  assert.ok(!world.vms().includes(capsule.id));
  assert.ok(!world.folders("capsules").includes(capsule.id));
});

test("a create whose warm capsule has lost its VM gets another one", async () => {
  const [victim] = await ready(1);
  assert.ok(victim !== undefined);
  await world.signalVm(victim, "SIGKILL");
  const capsules = await createTogether(atOnce);
  await Promise.all(capsules.map(async (capsule) => assert.equal(await capsule.sh("echo alive"), "alive")));
  await destroyAll(capsules);
});

test("a template that is used twice gets a warm capsule, which is removed with the template", async () => {
  const [source] = await createTogether(1);
  await source?.sh("echo of the template > /root/file");
  await world.client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: source?.id, name: "made" } });
  const fromMade = { template: "made" };
  await want(2, fromMade);
  const before = await ready(3);
  const [capsule] = await createTogether(1, fromMade);
  assert.ok(capsule !== undefined && before.includes(capsule.id));
  assert.equal(await capsule.sh("cat /root/file"), "of the template");
  const made = (await ready(2)).filter((id) => originOf(id).startsWith("templates/"));
  assert.ok(made.length > 0);
  await world.client.expect(204, "DELETE", "/v1/snapshots/made");
  assert.deepEqual(
    world.vms().filter((id) => made.includes(id)),
    [],
    "although a capsule still depends on it",
  );
  assert.equal((await world.client.call("POST", "/v1/capsules", { json: fromMade })).status, 404);
  assert.equal(await capsule.sh("cat /root/file"), "of the template");
  await capsule.destroy();
  assert.deepEqual(world.folders("templates"), []);
});

test("a server that stops ends the pool and keeps the capsules; a killed one does so at its next start", async () => {
  const [capsule] = await createTogether(1);
  assert.ok(capsule !== undefined);
  await ready(1);
  await world.restart("SIGTERM", undefined, { CAPSULE_POOL: "off" });
  assert.deepEqual(world.vms(), [capsule.id]);
  await world.assertConsistent();
  await world.restart("SIGTERM");
  await ready(1);
  await world.restart("SIGKILL", undefined, { CAPSULE_POOL: "off" });
  assert.deepEqual(world.vms(), [capsule.id]);
  assert.equal(await world.capsule(capsule.id).sh("echo alive"), "alive");
  await world.assertNoResidue();
});
