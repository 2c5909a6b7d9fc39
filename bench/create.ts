/**
 * From the create request to the result of a first command, one capsule at a time: from the warm pool, in a warm process, and
 * with nothing prepared; against gVisor and a cold boot.
 */
import { coldBoots } from "./cold-boot.ts";
import type { Fixture } from "./fixture.ts";
import { timeoutMs } from "./public-format.ts";
import { type Finding, ratio } from "./report.ts";
import { Service } from "./service.ts";
import { repeat, summarize } from "./statistics.ts";

/** The first creates of a server run uncompiled code: 45, 40 and 35 ms, later ones 25. */
const uncounted = 3;

export async function create(fixture: Fixture): Promise<void> {
  const { service, report } = fixture;
  const rounds = fixture.rounds(40, 200);
  const runsc = await fixture.runsc();
  const booted = (await coldBoots(fixture)).toExec;
  const [empty, unprepared, warm, contained]: [number[], number[], number[], number[]] = [[], [], [], []];
  const warmService = await fixture.warmService();
  await repeat(uncounted, () => warmService.timeToInteractive());
  await using pooled = await Service.start({ CAPSULE_POOL: "auto" });
  const hasPool = await isWarm(pooled);
  const began = performance.now();
  const launchedAtMs: number[] = [];
  for (let round = 0; round < rounds; round++) {
    if (hasPool) await pooled.requirePool();
    launchedAtMs.push(performance.now() - began);
    if (hasPool) warm.push(await pooled.timeToInteractive());
    if (hasPool) await pooled.requirePool(); // refilling it must not take time from the others
    await warmService.requireWarmProcesses();
    empty.push(await warmService.timeToInteractive());
    await warmService.requireWarmProcesses();
    unprepared.push(await service.timeToInteractive());
    if (typeof runsc !== "string") contained.push(await runsc.run());
  }
  const againstRunsc = (samples: number[]): Finding =>
    typeof runsc === "string" ? { absent: runsc } : ratio(samples, `${runsc.name} run`, contained);
  const boot = ratio(empty, "cold boot to exec", booted);
  report.note("createWarmProcess", empty, { gvisor: againstRunsc(empty), boot });
  report.note("createUnprepared", unprepared, {});
  if (!hasPool) report.miss("createWarmPool", "the server has no pool");
  else {
    const { p50, p95 } = summarize(warm);
    report.note("createWarmPool", warm, { gvisor: againstRunsc(warm), tail: { value: p95 / p50 } });
  }
  const trials = (hasPool ? warm : empty).map((ttiMs, round) => ({ launchedAtMs: launchedAtMs[round]!, ttiMs }));
  fixture.runs.push({ mode: "sequential", trials, wallMs: Math.min(performance.now() - began, rounds * timeoutMs) });
}

/** Creates some capsules, which the pool counts as demand, and waits until it is full. */
async function isWarm(pooled: Service): Promise<boolean> {
  await repeat(uncounted, () => pooled.timeToInteractive());
  return pooled.poolIsFull();
}
