/**
 * Several teams use the service for a long time, with faults: daemon and VMs are killed, guests stopped, uploads and
 * commands aborted. Afterwards all resources must be free again. Three parts: with kills of the daemon; without them,
 * to warm up the last daemon; and again without, after which it may not use more than before. CAPSULE_TEST_SEED repeats
 * the choices.
 */
import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { Random } from "../conformance/random.ts";
import { World } from "../faults/world.ts";
import { waitFor } from "../wait-for.ts";
import { measure, returnsTo, type Taken } from "./measure.ts";
import { durationMs, form } from "./soak-form.ts";
import { SoakPlayer } from "./soak-player.ts";

const teams = ["red", "green", "blue"];
const longestLifeMs = form === "smoke" ? 3_000 : 20_000;
const betweenFaultsMs = form === "smoke" ? 2_000 : 6_000;
const gauge = join(import.meta.dirname, "gauge.ts");

let world: World;
let gaugeFile: string;
before(async () => {
  // The allocators return free memory to the kernel, so that resident memory is the memory in use.
  const allocators = { MALLOC_ARENA_MAX: "2", MALLOC_MMAP_THRESHOLD_: "131072", MALLOC_TRIM_THRESHOLD_: "131072" };
  const NODE_OPTIONS = `--import=${gauge} --max-semi-space-size=4`;
  // Exactly one warm capsule, so that it uses the same before and after.
  const pool = form === "smoke" ? "off" : "auto";
  const env = {
    CAPSULE_POOL: pool,
    CAPSULE_POOL_MEMORY_MB: "64",
    CAPSULE_WAKE_DEADLINE_MS: "10000",
    NODE_OPTIONS,
    ...allocators,
  };
  gaugeFile = join(process.env.TMPDIR ?? "/tmp", `capsule-soak-${process.pid}`);
  world = await World.start({
    env: { ...env, CAPSULE_SOAK_GAUGE: gaugeFile },
    // Requests to killed VMs fail, and so do starts of them, and saves that are taken back. A new daemon refuses those to guests
    // whose agents are slow to answer it.
    errors: [
      /"code":"unavailable","msg":"request failed"/,
      /"code":"agent_error","msg":"request failed"/,
      /"msg":"capsule did not start"/,
      /"msg":"capsule could not be set running again"/,
    ],
  });
});
after(async () => {
  try {
    await world?.[Symbol.asyncDispose]();
  } finally {
    rmSync(gaugeFile, { force: true });
  }
});

/** Least number of each player's acts in each part, also on a slow machine. */
const actsMin = 4;

/** All teams act until the time is over, while `harm` injects faults. */
async function play(players: SoakPlayer[], partMs: number, harm: (deadline: number) => Promise<void>): Promise<void> {
  const deadline = performance.now() + partMs;
  const each = async (player: SoakPlayer) => {
    for (let acts = 0; acts < actsMin || performance.now() < deadline; acts++) await player.act();
  };
  await Promise.all([...players.map(each), harm(deadline)]);
}

/** Removes everything of the teams and waits until the server is idle. */
async function settle(players: SoakPlayer[]): Promise<void> {
  for (const player of players) await player.leave();
  await waitFor(
    "the pool is full, and no other folder is left",
    async () => {
      const { pool } = await world.health();
      const isFull = form === "smoke" || pool.ready === 1;
      return isFull && world.folders("capsules").length === pool.ready && world.folders("work").length === 0;
    },
    { deadlineMs: 120_000 },
  );
  world.client.close();
}

/** Kills and stops VMs, and counts how often. */
async function harmVms(random: Random, deadline: number, counts: Map<string, number>): Promise<void> {
  const faults: Record<string, (pid: number) => Promise<void>> = {
    "VM killed": async (pid) => signal(pid, "SIGKILL"),
    "VM stopped for up to 1.5 s": async (pid) => {
      signal(pid, "SIGSTOP");
      await delay(random.below(1_500));
      signal(pid, "SIGCONT");
    },
  };
  for (; performance.now() < deadline; await delay(random.below(betweenFaultsMs))) {
    const vms = world.vms();
    const pid = world.vmPid(vms[random.below(vms.length)] ?? "");
    if (pid === undefined) continue;
    const [name, fault] = Object.entries(faults)[random.below(2)]!;
    await fault(pid);
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // The VM has ended meanwhile.
  }
}

async function killDaemon(random: Random, deadline: number, counts: Map<string, number>): Promise<void> {
  await delay(random.below(longestLifeMs));
  for (; performance.now() <= deadline; await delay(random.below(longestLifeMs))) {
    await world.startAgain("SIGKILL");
    counts.set("daemon killed", (counts.get("daemon killed") ?? 0) + 1);
  }
}

test(`a soak: ${form}`, { timeout: 2 * durationMs + 600_000 }, async (t) => {
  const random = new Random(t);
  const statuses = new Map<number, number>();
  const faults = new Map<string, number>();
  const players: SoakPlayer[] = [];
  for (const name of teams)
    players.push(new SoakPlayer(world, name, await world.server.createKey(name), random, statuses));
  await settle(players);
  const first = await measure(world.server, gaugeFile);

  await play(players, durationMs / 2, async (deadline) => {
    await Promise.all([harmVms(random, deadline, faults), killDaemon(random, deadline, faults)]);
  });
  await world.startAgain("SIGKILL");
  await settle(players);
  await world.startAgain("SIGTERM");
  await play(players, durationMs / 4, (deadline) => harmVms(random, deadline, faults));
  await settle(players);
  const warm = await measure(world.server, gaugeFile);
  say(t.diagnostic.bind(t), "at first", first);
  say(t.diagnostic.bind(t), "warm", warm);

  await play(players, durationMs / 4, (deadline) => harmVms(random, deadline, faults));
  t.diagnostic(`answers ${JSON.stringify(Object.fromEntries(statuses))}`);
  const sum = (count: (player: SoakPlayer) => number) => players.reduce((total, player) => total + count(player), 0);
  faults.set(
    "agent's port taken over",
    sum(({ forgeries }) => forgeries),
  );
  const finished = ["exec/stream", "pty"].map((kind) => sum(({ conversations }) => conversations.get(kind) ?? 0));
  t.diagnostic(`${finished.join(" and ")} finished streams and terminals`);
  t.diagnostic(`${sum(({ unanswered }) => unanswered)} requests unanswered`);
  t.diagnostic(`faults ${JSON.stringify(Object.fromEntries(faults))}`);
  await settle(players);
  const { processes, diskBytes } = first;
  say(t.diagnostic.bind(t), "at last", await returnsTo({ ...warm, processes, diskBytes }, world.server, gaugeFile));
  assert.deepEqual(await world.server.log.unexpected(), []);
  assert.ok((statuses.get(200) ?? 0) > 10, "too few requests succeeded");
  assert.ok(form === "smoke" || Math.min(...finished) > 0, "of one kind of socket no conversation was finished");
});

function say(print: (text: string) => void, when: string, taken: Taken): void {
  print(`${when}: ${JSON.stringify(taken)}`);
}
