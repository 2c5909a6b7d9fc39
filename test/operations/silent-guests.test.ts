/**
 * A start of the server beside guests whose agents say nothing, longer than this test runs: the server listens, serves everybody
 * else, and tells requests for the silent ones to come again.
 */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import type { TestCapsule } from "../client.ts";
import { mute } from "../faults/muted.ts";
import { World } from "../faults/world.ts";
import { waitFor, within } from "../wait-for.ts";

const foreverMs = "3600000";

let world: World;
let ids: string[];
let bystander: TestCapsule;
before(async () => {
  const env = { CAPSULE_CONCURRENT_STARTS: "1", CAPSULE_WAKE_DEADLINE_MS: foreverMs, CAPSULE_SILENCE_MS: foreverMs };
  // The server that ends may not have heard that the last clients of the silent ones are gone.
  world = await World.start({ env, errors: [/"code":"unavailable"/, /the connection to the guest agent was closed/] });
  bystander = await world.client.capsule();
  const silent = await Promise.all([1, 2].map(async () => mute(await world.client.capsule())));
  ids = silent.map(({ id }) => id);
  await within("the server listens", world.startAgain("SIGTERM"));
  bystander = world.capsule(bystander.id);
  await waitFor("the bystander is adopted", async () => (await adopting()) === ids.length);
});
after(() => world[Symbol.asyncDispose]());

async function adopting(): Promise<number> {
  const text = await (await fetch(new URL("/metrics", world.server.url))).text();
  return Number(/^capsule_capsules_adopting (\d+)$/m.exec(text)?.[1]);
}

test("the others are used, paused, resumed and created", { timeout: 300_000 }, async () => {
  assert.equal(await bystander.sh("echo runs"), "runs");
  await bystander.pause();
  await bystander.resume();
  await using created = await world.client.capsule();
  assert.equal(await created.sh("echo new"), "new");
  assert.equal(await adopting(), ids.length);
  assert.deepEqual([(await world.health()).ready, (await world.health()).creates], [true, true]);
});

test("requests for the silent ones are 503 with Retry-After; GET tells that they run", {
  timeout: 300_000,
}, async () => {
  const asked = ids.flatMap((id) => [
    world.client.call("POST", `/v1/capsules/${id}/exec`, { json: { cmd: "true" } }),
    world.client.call("POST", `/v1/capsules/${id}/files/list`, { json: { path: "/" } }),
    world.client.call("POST", `/v1/capsules/${id}/pause`),
  ]);
  for (const id of ids) assert.equal((await world.capsule(id).view()).status, "running");
  for (const { status, json, headers } of await Promise.all(asked))
    assert.deepEqual([status, json.error.code, headers["retry-after"]], [503, "unavailable", "5"]);
});

test("DELETE ends such a VM at once", { timeout: 300_000 }, async () => {
  const id = ids.pop()!;
  await within("it is destroyed", world.capsule(id).destroy());
  assert.equal(world.vmPid(id), undefined);
  assert.equal(await adopting(), ids.length);
});

test("a stop lets the VMs run on, and the next start goes on waiting", { timeout: 300_000 }, async () => {
  const [id] = ids as [string];
  const pid = world.vmPid(id);
  await within("the server stops and listens again", world.startAgain("SIGTERM"));
  assert.equal(world.vmPid(id), pid);
  await waitFor("all others are adopted", async () => (await adopting()) === 1);
});

test("one whose agent never answers ends in error", { timeout: 300_000 }, async () => {
  const [id] = ids as [string];
  await world.capsule(bystander.id).destroy(); // a busy machine's guest may need more than the 4 s
  await world.startAgain("SIGTERM", undefined, { CAPSULE_WAKE_DEADLINE_MS: "4000", CAPSULE_SILENCE_MS: "4000" });
  const { error_reason } = await world.capsule(id).until("error");
  assert.match(error_reason, /./);
  await waitFor("its VM is ended", async () => world.vmPid(id) === undefined);
  await waitFor("none is waited for", async () => (await adopting()) === 0); // which ends with its change of status, or after it
  await world.assertConsistent();
  await world.assertNoResidue();
});
