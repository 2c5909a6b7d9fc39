/**
 * From the create request to the result of a first command, one capsule at a time: out of the pool; without one, in a process
 * that waited, and with nothing prepared; and against gVisor and a cold boot.
 */
import { coldBoots } from "./cold-boot.ts";
import { timeoutMs } from "./public-format.ts";
import { type Finding, ratio } from "./report.ts";
import type { Rig } from "./rig.ts";
import { Service } from "./service.ts";
import { repeat, summarize } from "./statistics.ts";

/** A server's first ones find its code as nobody has used it: 45, 40 and 35 ms, where later ones take 25. */
const uncounted = 3;

export async function create(rig: Rig): Promise<void> {
  const { service, report } = rig;
  const rounds = rig.rounds(40, 200);
  const runsc = await rig.runsc();
  const booted = (await coldBoots(rig)).toExec;
  const [empty, anew, warm, contained]: [number[], number[], number[], number[]] = [[], [], [], []];
  const expectant = await rig.expectant();
  await repeat(uncounted, () => expectant.timeToInteractive());
  await using pooled = await Service.start({ CAPSULE_POOL: "auto" });
  const hasPool = await isWarm(pooled);
  const began = performance.now();
  const launchedAtMs: number[] = [];
  for (let round = 0; round < rounds; round++) {
    if (hasPool) await pooled.requirePool();
    launchedAtMs.push(performance.now() - began);
    if (hasPool) warm.push(await pooled.timeToInteractive());
    if (hasPool) await pooled.requirePool(); // what refills it must not take time from the others
    await expectant.requireBlanks();
    empty.push(await expectant.timeToInteractive());
    await expectant.requireBlanks();
    anew.push(await service.timeToInteractive());
    if (typeof runsc !== "string") contained.push(await runsc.run());
  }
  const againstRunsc = (samples: number[]): Finding =>
    typeof runsc === "string" ? { absent: runsc } : ratio(samples, `${runsc.name} run`, contained);
  const boot = ratio(empty, "cold boot to exec", booted);
  report.note("createPoolEmpty", empty, { gvisor: againstRunsc(empty), boot });
  report.note("createAnew", anew, {});
  if (!hasPool) report.miss("createPoolWarm", "the server has no pool");
  else {
    const { p50, p95 } = summarize(warm);
    report.note("createPoolWarm", warm, { gvisor: againstRunsc(warm), tail: { value: p95 / p50 } });
  }
  const trials = (hasPool ? warm : empty).map((ttiMs, round) => ({ launchedAtMs: launchedAtMs[round]!, ttiMs }));
  rig.runs.push({ mode: "sequential", trials, wallMs: Math.min(performance.now() - began, rounds * timeoutMs) });
}

/** Shows the pool what is asked for, and waits for it. */
async function isWarm(pooled: Service): Promise<boolean> {
  await repeat(uncounted, () => pooled.timeToInteractive());
  return pooled.poolIsFull();
}
