/** Capsules in warm processes behave like others, and no warm process is left behind. */
import assert from "node:assert/strict";
import { readFileSync, statSync, utimesSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import type { TestCapsule } from "../client.ts";
import { waitFor } from "../wait-for.ts";
import { assertMarked, mark } from "./marks.ts";
import { World } from "./world.ts";

const env = { CAPSULE_WARM_PROCESSES: "2" };
const waitMs = 240_000;
const skip = process.getuid?.() !== 0 && "warm processes need root";

let world: World;
before(async () => {
  world = await World.start({
    env,
    errors: [/could not be resumed and is still paused: The VM of \S+ could not be restored/],
  });
});
after(() => world[Symbol.asyncDispose]());

/** The warm processes, when there are as many as wanted, and at least one. */
async function waiting(): Promise<number[]> {
  const isFull = async () => {
    const { ready, target } = (await world.health()).warm_processes;
    return ready >= target && ready > 0;
  };
  await waitFor("all that should wait do", isFull, { deadlineMs: waitMs });
  return world.pidsOf("warm");
}

async function pausedAndExpected(): Promise<{ capsule: TestCapsule; pids: number[] }> {
  const capsule = await world.client.capsule();
  await mark(capsule);
  await capsule.pause();
  return { capsule, pids: await waiting() };
}

test("capsules are resumed into them repeatedly, outlive the daemon there, and lose nothing", {
  skip,
}, async () => {
  const capsule = await world.client.capsule();
  await mark(capsule);
  await capsule.pause();
  await capsule.resume(); // the second demand, after which some are kept
  for (let round = 0; round < 2; round++) {
    await capsule.sh(`echo ${round} >> /root/rounds; sync; echo ${round} >> /dev/shm/rounds`);
    await capsule.pause();
    const pids = await waiting();
    await capsule.resume();
    assert.ok(pids.includes(world.vmPid(capsule.id)!), "it was not resumed into one that waited");
    await assertMarked(capsule);
  }
  const pid = world.vmPid(capsule.id);
  await world.restart("SIGKILL");
  const again = world.capsule(capsule.id);
  assert.equal(world.vmPid(again.id), pid, "the next daemon has adopted it");
  assert.equal(await again.sh("paste -sd, /root/rounds /dev/shm/rounds"), "0,1\n0,1");
  for (let round = 0; round < 2; round++) {
    await again.pause();
    await again.resume();
  }
  await assertMarked(again);
  await again.destroy();
});

test("capsules created at once get different ones and share no secrets", { skip }, async () => {
  const pids = await waiting();
  const capsules = await Promise.all([1, 2, 3].map(() => world.client.capsule()));
  const given = capsules.map(({ id }) => world.vmPid(id)!);
  assert.equal(new Set(given).size, 3);
  assert.deepEqual(
    pids.filter((pid) => !given.includes(pid)),
    [],
    "all warm processes were claimed",
  );
  const told = await Promise.all(
    capsules.map((capsule) =>
      capsule.sh("cat /etc/machine-id /proc/sys/kernel/hostname; head -c16 /dev/urandom | base64"),
    ),
  );
  assert.equal(new Set(told).size, 3);
  await Promise.all(capsules.map((capsule) => capsule.destroy()));
});

test("a start whose warm process has just died starts another QEMU", { skip }, async () => {
  const { capsule, pids } = await pausedAndExpected();
  for (const pid of pids) process.kill(pid, "SIGKILL");
  await capsule.resume();
  assert.ok(!pids.includes(world.vmPid(capsule.id)!));
  await assertMarked(capsule);
  await capsule.destroy();
});

test("a failed resume in one leaves the capsule paused and its disk layer in place", { skip }, async () => {
  const { capsule } = await pausedAndExpected();
  const layer = join(world.server.dataDir, "capsules", capsule.id, "disk.qcow2");
  const whole = readFileSync(layer);
  const seconds = Math.floor(statSync(layer).mtimeMs / 1_000); // a time may be cut off, as archives do
  writeFileSync(layer, Buffer.alloc(512, 0xff), { flag: "r+" });
  utimesSync(layer, seconds, seconds); // otherwise it would be refused as another layer, before a VM is started
  await world.client.expect(502, "POST", `/v1/capsules/${capsule.id}/resume`);
  assert.equal((await capsule.view()).status, "paused");
  assert.equal(world.vmPid(capsule.id), undefined);
  writeFileSync(layer, whole);
  utimesSync(layer, seconds, seconds);
  await capsule.resume();
  await assertMarked(capsule);
  await capsule.destroy();
});

test("warm processes of a template end when it is deleted", { skip }, async () => {
  const source = await world.client.capsule();
  await world.client.expect(201, "POST", "/v1/snapshots", { json: { sandbox_id: source.id, name: "made" } });
  for (let each = 0; each < 2; each++) await (await world.client.capsule({ template: "made" })).destroy();
  const [storage] = world.folders("templates");
  const isOnIt = (pid: number) => commandOf(pid).includes(`/templates/${storage}/`);
  await waitFor("one stands on it", async () => world.pidsOf("warm").some(isOnIt), { deadlineMs: waitMs });
  await world.client.expect(204, "DELETE", "/v1/snapshots/made");
  await waitFor("none does", async () => !world.pidsOf("warm").some(isOnIt));
});

/** Empty when the process has just ended. */
function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "latin1");
  } catch {
    return "";
  }
}

/** The most recently started process, at the start of its translation warm-up. */
async function warmingUp(): Promise<number> {
  const known = new Set(world.pidsOf("warm"));
  let found: number | undefined;
  const isThere = async () => {
    found = world.pidsOf("warm").find((pid) => !known.has(pid));
    return found !== undefined;
  };
  await waitFor("another is started", isThere, { deadlineMs: waitMs });
  return found!;
}

test("one that dies in its translation warm-up is replaced, and a server that stops then leaves nothing", {
  skip,
}, async () => {
  const { capsule } = await pausedAndExpected();
  const [dying] = await Promise.all([warmingUp(), capsule.resume()]); // claims one
  process.kill(dying, "SIGKILL");
  // A slow resume may have let it become ready: then the server counts it until it is told of its end.
  await waitFor("another is in its place", async () => !(await waiting()).includes(dying), { deadlineMs: waitMs });
  await capsule.pause();
  await Promise.all([warmingUp(), capsule.resume()]);
  await world.restart("SIGTERM");
  assert.deepEqual(world.pidsOf("warm"), []);
  const again = world.capsule(capsule.id);
  await assertMarked(again);
  await again.destroy();
});

test("a server that stops ends them", { skip }, async () => {
  for (const capsule of await Promise.all([1, 2].map(() => world.client.capsule()))) await capsule.destroy();
  await waiting();
  await world.restart("SIGTERM", undefined, { CAPSULE_WARM_PROCESSES: "0" });
  assert.deepEqual(world.vms(), []);
  await world.assertNoResidue();
});
