/**
 * The series of one capsule. The host sees the processor time of its QEMU; memory and disk are asked of the guest, and only when it
 * has used its processor since the last point, so that an idle guest is not woken.
 */
import type { GuestUsage } from "../../agent/agent.ts";
import type { Guest } from "../../host/host.ts";
import type { Clock } from "../clock.ts";
import { Means } from "./means.ts";
import { type Point, PointRing } from "./point-ring.ts";

/** Percent of one CPU below which a guest is idle. */
const idlePct = 1;
/** Two measurements have at least this between them: processor times are counted in hundredths of a second. */
const leastSpanMs = 1_000;
const askMs = 2_000;
const bytesPerMb = 2 ** 20;
/** cpu_pct, vcpus, memory_used_mb, memory_total_mb, disk_used_mb, disk_total_mb. */
const width = 6;
const hourOfPoints = 360;

/** The machine of a run; a guest that says more is not believed. */
export interface RunShape {
  vcpus: number;
  memoryMb: number;
  diskMb: number;
}

interface Run {
  guest: Guest;
  shape: RunShape;
  /** At the last point, or the begin of the run. */
  cpuMs: number;
  ticks: number;
  usage: GuestUsage | undefined;
  /** The last measurement that was made for an answer. */
  shown: { ticks: number; point: Promise<Point | undefined> } | undefined;
  over: AbortController;
}

export class CapsuleSeries {
  readonly means = new Means(width);
  readonly points = new PointRing(hourOfPoints, width);
  readonly #clock: Clock;
  #run: Run | undefined;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get isRunning(): boolean {
    return this.#run !== undefined;
  }

  begin(guest: Guest, { vcpus, memoryMb, diskMb }: RunShape): void {
    this.end();
    const cpuMs = guest.cpuMs();
    if (cpuMs === undefined) return;
    const over = new AbortController();
    const shape = { vcpus, memoryMb, diskMb };
    this.#run = { ...{ guest, shape, cpuMs, over }, ticks: this.#clock.ticks(), usage: undefined, shown: undefined };
  }

  end(): void {
    this.#run?.over.abort();
    this.#run = undefined;
  }

  /** Adds a point, unless the last one was only just made. Never rejects. */
  async sample(): Promise<void> {
    const run = this.#run;
    if (run === undefined) return;
    const [ticks, cpuMs] = [this.#clock.ticks(), run.guest.cpuMs()];
    const point = await this.#measure(run, ticks, cpuMs);
    if (point === undefined || cpuMs === undefined) return;
    Object.assign(run, { ticks, cpuMs });
    this.points.add(ticks, point);
    this.means.add(point);
  }

  /** A point that is not kept; several callers within a second share one. Undefined: a kept one is as new, or it does not run. */
  newest(): Promise<Point | undefined> {
    const run = this.#run;
    if (run === undefined) return Promise.resolve(undefined);
    const ticks = this.#clock.ticks();
    if (run.shown === undefined || ticks - run.shown.ticks >= leastSpanMs)
      run.shown = { ticks, point: this.#measure(run, ticks, run.guest.cpuMs()) };
    return run.shown.point;
  }

  async #measure(run: Run, ticks: number, cpuMs: number | undefined): Promise<Point | undefined> {
    const spanMs = ticks - run.ticks;
    if (cpuMs === undefined || spanMs < leastSpanMs) return undefined;
    const at = this.#clock.now();
    const cpuPct = Math.max(0, ((cpuMs - run.cpuMs) / spanMs) * 100);
    if (run.usage === undefined || cpuPct >= idlePct) await ask(run);
    const { usage, shape } = run;
    return {
      at,
      values: [
        ...[Math.round(cpuPct * 10) / 10, shape.vcpus],
        ...inMb(usage?.memoryUsedBytes, usage?.memoryTotalBytes, shape.memoryMb),
        ...inMb(usage?.diskUsedBytes, usage?.diskTotalBytes, shape.diskMb),
      ],
    };
  }
}

/** Used and total MiB, the total at most `mostMb`, and the used ones at most the total. */
function inMb(usedBytes: number | undefined, totalBytes: number | undefined, mostMb: number): (number | null)[] {
  if (usedBytes === undefined || totalBytes === undefined) return [null, null];
  const totalMb = Math.min(Math.round(totalBytes / bytesPerMb), mostMb);
  return [Math.min(Math.round(usedBytes / bytesPerMb), totalMb), totalMb];
}

/** An agent that lacks the verb, or does not answer, leaves what was known. */
async function ask(run: Run): Promise<void> {
  try {
    const signal = AbortSignal.any([run.over.signal, AbortSignal.timeout(askMs)]);
    run.usage = await run.guest.agent.usage(signal);
  } catch {}
}
