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
 *                         nothing else is paused for 15 s, since that frees its memory; after them the next one is tried
 *      no capsule of the teams over their share can be paused
 *                         none of the other teams is paused. After 30 s without a pause that succeeded, the VM of the
 *                         largest capsule of the team furthest over its share is ended: its capsule gets status `error`.
 *                         A capsule that is being started or resumed is measured too, and can be ended but not paused
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
/** Shortage without a pause that succeeded, before a VM of a team over its share is ended. */
const endAfterMs = 30_000;
/** A save that takes longer does not protect its VM from being ended. */
const saveMaxMs = 120_000;
const endReason =
  "the host was short of memory, the capsule's team used more than its share of it, and the capsule could not be paused";

/** `paused`: the VM has ended; `ending`: another change or this pause is ending it; `refused`: it cannot be paused in its state. */
export type MemoryPause = "paused" | "ending" | "refused";

export interface MemoryWatchOptions {
  host: Pick<Host, "memory" | "memoryByCapsule">;
  store: Pick<CapsuleStore, "get">;
  /** Pauses a capsule and resolves when its VM has ended. With the other outcomes it resolves at once. */
  pause: (id: string) => Promise<MemoryPause>;
  /**
   * Ends the VM of a capsule, whatever change is under way: it gets status `error` for that reason, or stays paused when it was
   * being resumed. False when its VM cannot be ended yet.
   */
  end: (id: string, reason: string) => boolean;
  clock: Clock;
  /** The host's memory without the reserve, which the teams share. */
  capacityBytes: number;
  log: Log;
  /** Called after each pause, and when a VM is ended. */
  onPause: (outcome: MemoryPauseOutcome) => void;
}

export type MemoryPauseOutcome = "done" | "failed" | "ended";

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
  /** When memory became short, or a VM was ended last during this shortage. */
  #shortSinceMs: number | undefined;
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
        this.#shortSinceMs = undefined;
        this.#isReported = false;
        this.#ending.clear();
        return;
      }
      this.#shortSinceMs ??= this.#options.clock.ticks();
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
    const { host, store, capacityBytes, clock } = this.#options;
    for (const [id, untilMs] of this.#failed) if (untilMs <= clock.ticks()) this.#failed.delete(id);
    const running: RunningCapsule[] = [];
    for (const [id, bytes] of await host.memoryByCapsule()) {
      const teamId = store.get(id)?.teamId;
      if (teamId !== undefined) running.push({ id, teamId, bytes });
    }
    const skipped = new Set(this.#failed.keys());
    while (!this.#isStopped && this.#isShort()) {
      const next = chooseToPause(running, capacityBytes, skipped);
      if (next === undefined) {
        this.#pauseNone(running);
        return;
      }
      skipped.add(next.id);
      const begunMs = clock.ticks();
      const outcome = await this.#pauseWithin(next);
      if (outcome === "paused") {
        this.#ending.delete(next.id);
        this.#shortSinceMs = clock.ticks();
        return;
      }
      if (outcome === "refused") continue;
      const sinceMs = this.#ending.get(next.id) ?? begunMs;
      this.#ending.set(next.id, sinceMs);
      if (clock.ticks() - sinceMs < endingMaxMs) return;
    }
  }

  /** No capsule that may be paused can be. */
  #pauseNone(running: readonly RunningCapsule[]): void {
    const { capacityBytes, clock, log, end, onPause } = this.#options;
    const now = clock.ticks();
    if (!this.#isReported) {
      log.error({ running: running.length }, "the host is short of memory, and no capsule can be paused now");
      this.#isReported = true;
    }
    if (now - (this.#shortSinceMs ?? now) < endAfterMs) return;
    const saving = [...this.#ending].filter(([, sinceMs]) => now - sinceMs < saveMaxMs).map(([id]) => id);
    const skipped = new Set(saving);
    const worstOf = () => chooseOverShare(overShare(running, capacityBytes), skipped);
    let worst = worstOf();
    while (worst !== undefined && !end(worst.id, endReason)) {
      skipped.add(worst.id);
      worst = worstOf();
    }
    if (worst === undefined) return;
    this.#shortSinceMs = now;
    log.warn(
      { capsule: worst.id, bytes: worst.bytes },
      "the host is short of memory: a VM that could not be paused is ended",
    );
    onPause("ended");
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
 * Undefined: none. While a team is over its share, no capsule of a team within its share is chosen, whatever is skipped. Skipped
 * capsules count for their teams.
 */
export function chooseToPause(
  running: readonly RunningCapsule[],
  capacityBytes: number,
  skipped: ReadonlySet<string>,
): RunningCapsule | undefined {
  const over = overShare(running, capacityBytes);
  return over.length > 0 ? chooseOverShare(over, skipped) : largest(running, skipped);
}

/** The capsules of the teams over their share, those of the team furthest over it first. */
function overShare(running: readonly RunningCapsule[], capacityBytes: number): RunningCapsule[][] {
  const teams = [...Map.groupBy(running, ({ teamId }) => teamId).values()];
  const shareBytes = capacityBytes / teams.length;
  return teams
    .map((capsules) => ({ capsules, bytes: capsules.reduce((sum, { bytes }) => sum + bytes, 0) }))
    .filter(({ bytes }) => bytes > shareBytes)
    .sort((a, b) => b.bytes - a.bytes)
    .map(({ capsules }) => capsules);
}

/** The largest capsule of the first team that has one. */
function chooseOverShare(teams: readonly RunningCapsule[][], skipped: ReadonlySet<string>): RunningCapsule | undefined {
  return teams.map((capsules) => largest(capsules, skipped)).find((found) => found !== undefined);
}

function largest(capsules: readonly RunningCapsule[], skipped: ReadonlySet<string>): RunningCapsule | undefined {
  return capsules.filter(({ id }) => !skipped.has(id)).sort((a, b) => b.bytes - a.bytes)[0];
}
