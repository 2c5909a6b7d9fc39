/** Creates at once, or at a fixed interval, on a server with default settings; each capsule runs a command. */
import { readFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { coresAtOnce } from "./cores.ts";
import type { Fixture } from "./fixture.ts";
import { type Run, successOf, type Trial, timesOf } from "./public-format.ts";
import { pairedRatio } from "./report.ts";
import { Service } from "./service.ts";
import { repeat, summarize, timed } from "./statistics.ts";

/** A turn is three single creates of each kind, then one burst. */
const turns = 5;
const singles = 3;
/** The first creates of a server are slower, as in the group `create`. */
const uncounted = 3;
const smallBurst = 20;
const largeBurst = 100;
const staggerMs = 200;
/** After this time the burst starts even if the pool is not full. */
const poolWaitMs = 30_000;
const getEveryMs = 10;

export async function burst(fixture: Fixture): Promise<void> {
  const { report } = fixture;
  report.note("cores", await coresAtOnce(), {});
  await using service = await Service.start();
  await repeat(uncounted, () => service.timeToInteractive());
  await smallBursts(fixture, service);

  await service.poolIsFull(poolWaitMs);
  await largeBursts(fixture, service);

  await service.poolIsFull(poolWaitMs);
  const staggered = await launch(service, "staggered", fixture.rounds(20, largeBurst));
  report.note("staggered", succeeded(staggered), { success: { value: successOf(staggered) } });
  fixture.runs.push(staggered);
}

/** Each burst right after the single creates that it is compared with. */
async function smallBursts(fixture: Fixture, service: Service): Promise<void> {
  const { report, runs } = fixture;
  const warmService = await fixture.warmService();
  await repeat(uncounted, () => warmService.timeToInteractive());
  const taken = { bursts: [] as Run[], unprepared: [] as number[][], warm: [] as number[][] };
  for (let turn = 0; turn < turns; turn++) {
    await service.requirePool();
    await service.requireWarmProcesses(); // refilling them must not take time from others
    taken.unprepared.push(await repeat(singles, () => fixture.service.timeToInteractive()));
    taken.warm.push(await inWarmProcess(warmService));
    taken.bursts.push(await launch(service, "burst", smallBurst));
  }
  report.note("burst20", taken.bursts.flatMap(succeeded), {
    wall: pairedRatio(taken.bursts.map(shareOfCores), "single, warm process", taken.warm),
    unprepared: pairedRatio(taken.bursts.map(shareOfCores), "single, nothing prepared", taken.unprepared),
    success: { value: Math.min(...taken.bursts.map(successOf)) },
  });
  runs.push(...taken.bursts);
}

/** Single creates on a server without a pool, each when its warm processes are ready. */
async function inWarmProcess(warmService: Service): Promise<number[]> {
  const taken = await repeat(singles, async () => {
    await warmService.requireWarmProcesses();
    return warmService.timeToInteractive();
  });
  await warmService.requireWarmProcesses(); // what makes them anew must not take time from the burst
  return taken;
}

/** Wall time per create, times the number of cores. */
function shareOfCores({ wallMs, trials }: Run): number[] {
  return [(wallMs * navigator.hardwareConcurrency) / trials.length];
}

async function largeBursts({ report, runs }: Fixture, service: Service): Promise<void> {
  const bystander = await service.createRunning();
  const swapped = pagesSwappedOut();
  const watch = watchGets(service, bystander);
  const large = await launch(service, "burst", largeBurst);
  const gets = await watch.end();
  await service.destroy(bystander);
  report.note("burst100", succeeded(large), {
    success: { value: successOf(large) },
    swap: { value: pagesSwappedOut() - swapped },
  });
  report.note("getDuringBurst", gets, { tail: { value: summarize(gets).p99 } });
  runs.push(large);
}

/** Starts `count` creates and destroys the capsules after the last one has its result. */
async function launch(service: Service, mode: "burst" | "staggered", count: number): Promise<Run> {
  const began = performance.now();
  const ids: string[] = [];
  const one = async (): Promise<Trial> => {
    const launchedAtMs = performance.now() - began;
    try {
      const ttiMs = await timed(async () => {
        const id = await service.createRunning();
        ids.push(id);
        await service.exec(id, "/bin/true");
      });
      return { launchedAtMs, ttiMs };
    } catch (error) {
      return { launchedAtMs, ttiMs: undefined, error: String(error) };
    }
  };
  const started: Promise<Trial>[] = [];
  for (let each = 0; each < count; each++) {
    if (mode === "staggered" && each > 0) await delay(staggerMs);
    started.push(one());
  }
  const trials = await Promise.all(started);
  const wallMs = performance.now() - began;
  await Promise.all(ids.map((id) => service.destroy(id))); // failed ones end with their server
  for (const { error } of trials) if (error !== undefined) console.error(`bench: ${mode}: ${error}`);
  return mode === "staggered" ? { mode, trials, wallMs, staggerMs } : { mode, trials, wallMs };
}

/** The times of the creates that succeeded. Throws when none did. */
function succeeded(run: Run): number[] {
  const times = timesOf(run);
  if (times.length === 0) throw new Error(`no capsule of the ${run.mode} ran its command: ${run.trials[0]?.error}`);
  return times;
}

/** GETs one capsule repeatedly until `end` is called, which resolves with the latencies. */
function watchGets(service: Service, id: string): { end(): Promise<number[]> } {
  let isOver = false;
  const asking = (async () => {
    const samples: number[] = [];
    while (!isOver) {
      samples.push(await timed(() => service.ask("GET", `/v1/capsules/${id}`)));
      await delay(getEveryMs);
    }
    return samples;
  })();
  return {
    end() {
      isOver = true;
      return asking;
    },
  };
}

function pagesSwappedOut(): number {
  return Number(/^pswpout (\d+)$/m.exec(readFileSync("/proc/vmstat", "utf8"))?.[1]);
}
