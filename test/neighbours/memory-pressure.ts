/**
 * Guests whose memory together exceeds what the machine may give: capsules of the team that takes most are paused, another
 * team's commands stay exact, and nothing is lost. The machine is made small by a large reserve, so the test depends on the
 * memory that others use meanwhile: half of what a guest has written is the tolerance.
 */
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import type { Client, TestCapsule } from "../client.ts";
import { World } from "../faults/world.ts";
import { waitFor } from "../wait-for.ts";

const noisyCount = 3;
/** Written by each noisy guest, and the memory that it has. */
const writtenMb = 1_200;
const memoryMb = 1_600;
const quietTeam = "quiet";

export async function pauseTheGreediest(): Promise<void> {
  const errors = [
    /"message":"the host has no memory left for another capsule/,
    /"msg":"the host is short of memory, and no capsule can be paused now"/, // until their agents have answered the new server
  ];
  await using world = await World.start({ errors });
  lowerOomScore(world.server.pid);
  const key = await world.server.createKey(quietTeam);
  const { id: bystander } = await world.client.as(key).capsule({ memory_mb: 256 });
  const noisy = await Promise.all(Array.from({ length: noisyCount }, () => hoarder(world.client)));
  for (const id of [bystander, ...noisy])
    assert.equal(oomScore(world.vmPid(id)), 500, "children of the server inherit");

  // Two of the three have to go, with half a guest's memory to spare on both sides.
  const reserveMb = Math.round(availableMb() + 1.5 * writtenMb);
  await world.restart("SIGTERM", undefined, { CAPSULE_MEMORY_RESERVE_MB: String(reserveMb) });
  const quiet = world.client.as(key);
  const paused = async () =>
    (await world.views()).filter(({ status }) => status === "paused").map((capsule) => capsule.id);
  let round = 0;
  const areTwoPaused = async () => {
    assert.equal(await commandOf(quiet, bystander, `echo ${++round}`), `${round}`);
    return (await paused()).length === noisyCount - 1;
  };
  await waitFor("two capsules are paused", areTwoPaused, { deadlineMs: 240_000 });
  const pausedIds = await paused();
  const refused = await world.client.call("POST", `/v1/capsules/${pausedIds[0]}/resume`, {});
  assert.deepEqual([refused.status, refused.json.error.code], [503, "no_capacity"], refused.text);
  assert.deepEqual((await paused()).sort(), pausedIds.sort(), "enough was freed");
  const { json: bystanderView } = await quiet.expect(200, "GET", `/v1/capsules/${bystander}`);
  assert.equal(bystanderView.status, "running");
  assert.deepEqual(await pausesOf(quiet), []);
  const entries = await pausesOf(world.client);
  assert.deepEqual(entries.map(({ capsule_id }) => capsule_id).sort(), pausedIds);
  for (const { subject, key_id } of entries) assert.deepEqual([subject, key_id], ["memory pressure", ""]);

  await world.restart("SIGTERM");
  for (const id of pausedIds) {
    await world.capsule(id).resume();
    assert.equal(await commandOf(world.client, id, "kill -0 $(cat /root/pid) && echo runs"), "runs");
  }
  await world.client.as(key).expect(204, "DELETE", `/v1/capsules/${bystander}`);
  await world.assertConsistent();
  await world.assertNoResidue();
}

/** A capsule that has written its memory, and keeps it. */
async function hoarder(client: Client): Promise<string> {
  const capsule: TestCapsule = await client.capsule({ memory_mb: memoryMb });
  const script = `import time; held = b"x" * (${writtenMb} << 20); print("held", flush=True); time.sleep(1e6)`;
  await capsule.sh(`cd /root; nohup python3 -c '${script}' > out 2>&1 & echo $! > /root/pid`);
  await capsule.sh("until grep -q held /root/out; do sleep 0.2; done", { timeout: 240 });
  return capsule.id;
}

async function commandOf(client: Client, id: string, script: string): Promise<string> {
  const json = { cmd: "sh", args: ["-c", script] };
  return (await client.expect(200, "POST", `/v1/capsules/${id}/exec`, { json })).json.stdout.trim();
}

async function pausesOf(client: Client): Promise<{ capsule_id: string; subject: string; key_id: string }[]> {
  const { json } = await client.expect(200, "GET", "/v1/audit?limit=1000");
  return json.entries.filter(({ action }: { action: string }) => action === "capsule.pause");
}

function availableMb(): number {
  return Number(/^MemAvailable:\s+(\d+) kB$/m.exec(readFileSync("/proc/meminfo", "utf8"))?.[1]) / 1_024;
}

function oomScore(pid: number | undefined): number {
  return Number(readFileSync(`/proc/${pid}/oom_score_adj`, "utf8"));
}

/** As the service's unit does, where this process may. */
function lowerOomScore(pid: number | undefined): void {
  try {
    writeFileSync(`/proc/${pid}/oom_score_adj`, "-900");
  } catch (error) {
    assert.equal((error as NodeJS.ErrnoException).code, "EACCES");
  }
}
