/**
 * Pauses capsules when the host runs short of memory, before the kernel has to kill a VM. Admission looks at memory when a
 * VM is started; what it writes afterwards is bounded by its own size only.
 *
 *      once a second      the memory beyond the reserve is read
 *      below 0, three readings in a row, or one while processes already wait for memory
 *                         the largest capsule of the team furthest over its share is paused; where no team is over its
 *                         share, the largest of all. Share: the memory beyond the reserve / teams with running capsules
 *      after its VM ended the count of readings begins anew
 *      a pause failed     the capsule is left alone for 30 s, and the next one is tried
 *      it is being paused, captured or destroyed already
 *                         nothing else is paused for 15 s, since that frees its memory; after them the next capsule of the
 *                         teams over their share is paused, and none of the other teams
 *
 * docs/adr/0025 has the reasons.
 */
import type { Host } from "../host/host.ts";
import type { Log } from "../log.ts";
import type { Clock } from "./clock.ts";
import type { CapsuleStore } from "./store.ts";

const intervalMs = 1_000;
/** In a row. The memory of a VM that was just killed, and the page cache, are given back within this time. */
const shortReadings = 3;
const failedMs = 30_000;
/** Wait for the end of a VM whose capsule is being paused, captured or destroyed. A capsule of many GiB takes that long to save. */
const endingMaxMs = 15_000;

/** `paused`: the VM has ended; `ending`: another change or this pause is ending it; `refused`: it cannot be paused in its state. */
export type MemoryPause = "paused" | "ending" | "refused";

export interface MemoryWatchOptions {
  host: Pick<Host, "memory" | "memoryByCapsule">;
  store: Pick<CapsuleStore, "get">;
  /** Pauses a capsule and resolves when its VM has ended. With the other outcomes it resolves at once. */
  pause: (id: string) => Promise<MemoryPause>;
  clock: Clock;
  /** The host's memory without the reserve, which the teams share. */
  capacityBytes: number;
  log: Log;
  /** Called after each pause. */
  onPause: (outcome: "done" | "failed") => void;
}

export interface RunningCapsule {
  id: string;
  teamId: string;
  /** Memory that its pause frees. */
  bytes: number;
}

export class MemoryWatch {
  readonly #options: MemoryWatchOptions;
  /** Readings in a row below the reserve. */
  #short = 0;
  /** Capsules whose pause has failed, until when they are left alone. */
  readonly #failed = new Map<string, number>();
  /** Capsules whose VM is being ended, and since when. */
  readonly #ending = new Map<string, number>();
  /** Whether it was logged that nothing can be paused, since memory became short. */
  #isReported = false;
  #isStopped = false;

  constructor(options: MemoryWatchOptions) {
    this.#options = options;
  }

  /** The returned function stops it; a pause under way goes on. */
  start(): () => void {
    let cancel = () => {};
    const arm = () => {
      if (!this.#isStopped) cancel = this.#options.clock.after(intervalMs, () => void this.#look().finally(arm));
    };
    arm();
    return () => {
      this.#isStopped = true;
      cancel();
    };
  }

  async #look(): Promise<void> {
    const { host, log } = this.#options;
    try {
      if (!this.#isShort()) {
        this.#short = 0;
        this.#isReported = false;
        this.#ending.clear();
        return;
      }
      this.#short++;
      if (this.#short < shortReadings && !host.memory.isStalling()) return;
      await this.#pauseOne();
      this.#short = 0;
    } catch (error) {
      log.error({ err: error }, "the host is short of memory: its capsules could not be measured");
    }
  }

  #isShort(): boolean {
    return this.#options.host.memory.spareBytes() < 0;
  }

  async #pauseOne(): Promise<void> {
    const { host, store, capacityBytes, clock, log } = this.#options;
    for (const [id, untilMs] of this.#failed) if (untilMs <= clock.ticks()) this.#failed.delete(id);
    const running: RunningCapsule[] = [];
    for (const [id, bytes] of await host.memoryByCapsule()) {
      const teamId = store.get(id)?.teamId;
      if (teamId !== undefined) running.push({ id, teamId, bytes });
    }
    const skipped = new Set(this.#failed.keys());
    const late = new Set<string>();
    while (!this.#isStopped && this.#isShort()) {
      const next = chooseToPause(running, capacityBytes, skipped, late);
      if (next === undefined) {
        if (this.#isReported) return;
        log.error({ running: running.length }, "the host is short of memory, and no capsule can be paused now");
        this.#isReported = true;
        return;
      }
      skipped.add(next.id);
      const begunMs = clock.ticks();
      const outcome = await this.#pauseWithin(next);
      if (outcome === "paused") {
        this.#ending.delete(next.id);
        return;
      }
      if (outcome === "refused") continue;
      const sinceMs = this.#ending.get(next.id) ?? begunMs;
      this.#ending.set(next.id, sinceMs);
      if (clock.ticks() - sinceMs < endingMaxMs) return;
      late.add(next.id);
    }
  }

  /** A pause that takes longer than `endingMaxMs` goes on. */
  async #pauseWithin(capsule: RunningCapsule): Promise<MemoryPause> {
    const { promise, resolve } = Promise.withResolvers<MemoryPause>();
    const cancel = this.#options.clock.after(endingMaxMs, () => resolve("ending"));
    void this.#pause(capsule).then(resolve);
    const outcome = await promise;
    cancel();
    return outcome;
  }

  /** Never rejects. */
  async #pause({ id, bytes }: RunningCapsule): Promise<MemoryPause> {
    const { pause, clock, log, onPause } = this.#options;
    try {
      const outcome = await pause(id);
      if (outcome !== "paused") return outcome;
      log.warn({ capsule: id, bytes }, "the host is short of memory: a capsule was paused");
      onPause("done");
      return outcome;
    } catch (error) {
      this.#failed.set(id, clock.ticks() + failedMs);
      log.error({ err: error, capsule: id, bytes }, "the host is short of memory: a capsule could not be paused");
      onPause("failed");
      return "refused";
    }
  }
}

/**
 * Undefined when all are skipped. Skipped capsules count for their teams. `late`: capsules whose VM did not end within
 * `endingMaxMs`; while one is of a team over its share, no capsule of a team within its share is chosen.
 */
export function chooseToPause(
  running: readonly RunningCapsule[],
  capacityBytes: number,
  skipped: ReadonlySet<string>,
  late: ReadonlySet<string> = new Set(),
): RunningCapsule | undefined {
  const teams = [...Map.groupBy(running, ({ teamId }) => teamId).values()];
  const shareBytes = capacityBytes / teams.length;
  const overShare = teams
    .map((capsules) => ({ capsules, bytes: capsules.reduce((sum, { bytes }) => sum + bytes, 0) }))
    .filter(({ bytes }) => bytes > shareBytes)
    .sort((a, b) => b.bytes - a.bytes);
  const largest = (capsules: readonly RunningCapsule[]) =>
    capsules.filter(({ id }) => !skipped.has(id)).sort((a, b) => b.bytes - a.bytes)[0];
  for (const { capsules } of overShare) {
    const found = largest(capsules);
    if (found !== undefined) return found;
  }
  if (overShare.some(({ capsules }) => capsules.some(({ id }) => late.has(id)))) return undefined;
  return largest(running);
}
