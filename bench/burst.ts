/** Many creates at once, or one every so often, by a server with its defaults; each capsule runs a command. */
import { readFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { coresAtOnce } from "./cores.ts";
import { type Run, successOf, type Trial, timesOf } from "./public-format.ts";
import { ratioOfTurns } from "./report.ts";
import type { Rig } from "./rig.ts";
import { Service } from "./service.ts";
import { repeat, summarize, timed } from "./statistics.ts";

/** Each of some single creates of either kind and one burst. */
const turns = 5;
const singles = 3;
/** A server's first ones are slower, as in the group `create`. */
const uncounted = 3;
const smallBurst = 20;
const largeBurst = 100;
const staggerMs = 200;
/** Full or not, a burst comes when it comes. */
const poolWaitMs = 30_000;
const getEveryMs = 10;

export async function burst(rig: Rig): Promise<void> {
  const { report } = rig;
  report.note("cores", await coresAtOnce(), {});
  await using service = await Service.start();
  await repeat(uncounted, () => service.timeToInteractive());
  await smallBursts(rig, service);

  await service.poolIsFull(poolWaitMs);
  await largeBursts(rig, service);

  await service.poolIsFull(poolWaitMs);
  const staggered = await launch(service, "staggered", rig.rounds(20, largeBurst));
  report.note("staggered", succeeded(staggered), { success: { value: successOf(staggered) } });
  rig.runs.push(staggered);
}

/** Each right after the single creates that it is compared with. */
async function smallBursts(rig: Rig, service: Service): Promise<void> {
  const { report, runs } = rig;
  const expectant = await rig.expectant();
  await repeat(uncounted, () => expectant.timeToInteractive());
  const taken = { bursts: [] as Run[], anew: [] as number[][], empty: [] as number[][] };
  for (let turn = 0; turn < turns; turn++) {
    await service.requirePool();
    await service.requireBlanks(); // what makes them must not take time from others
    taken.anew.push(await repeat(singles, () => rig.service.timeToInteractive()));
    taken.empty.push(await poolEmpty(expectant));
    taken.bursts.push(await launch(service, "burst", smallBurst));
  }
  report.note("burst20", taken.bursts.flatMap(succeeded), {
    wall: ratioOfTurns(taken.bursts.map(shareOfCores), "single, pool empty", taken.empty),
    anew: ratioOfTurns(taken.bursts.map(shareOfCores), "single, nothing prepared", taken.anew),
    success: { value: Math.min(...taken.bursts.map(successOf)) },
  });
  runs.push(...taken.bursts);
}

/** One at a time, by a server without a pool, each when its processes wait: what *create, pool empty* measures. */
async function poolEmpty(expectant: Service): Promise<number[]> {
  const taken = await repeat(singles, async () => {
    await expectant.requireBlanks();
    return expectant.timeToInteractive();
  });
  await expectant.requireBlanks(); // what makes them anew must not take time from the burst
  return taken;
}

/** What each had of all cores' time. */
function shareOfCores({ wallMs, trials }: Run): number[] {
  return [(wallMs * navigator.hardwareConcurrency) / trials.length];
}

async function largeBursts({ report, runs }: Rig, service: Service): Promise<void> {
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

/** So many creates; nothing is destroyed before the last one has its result. */
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
  await Promise.all(ids.map((id) => service.destroy(id))); // those that failed end with their server
  for (const { error } of trials) if (error !== undefined) console.error(`bench: ${mode}: ${error}`);
  return mode === "staggered" ? { mode, trials, wallMs, staggerMs } : { mode, trials, wallMs };
}

/** Throws when nothing succeeded, for then there is no time to tell. */
function succeeded(run: Run): number[] {
  const times = timesOf(run);
  if (times.length === 0) throw new Error(`no capsule of the ${run.mode} ran its command: ${run.trials[0]?.error}`);
  return times;
}

/** Asks for one capsule again and again, until told to end; the times of the answers. */
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
