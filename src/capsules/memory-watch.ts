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
 *                         its memory is waited for, 15 s since it was first found so; then the next one of the teams over their
 *                         share is paused, and no other
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
/** For the memory of a capsule that is being paused, captured or destroyed. A capsule of many GiB takes that long to save. */
const patienceMs = 15_000;

/** Of one capsule: its VM has ended; its memory is on its way back; or it cannot be paused in its state. */
export type Relief = "paused" | "underWay" | "impossible";

export interface MemoryWatchOptions {
  host: Pick<Host, "memory" | "memoryByCapsule">;
  store: Pick<CapsuleStore, "get">;
  /** Pauses a capsule and resolves when its VM has ended. With the other outcomes it resolves at once. */
  pause: (id: string) => Promise<Relief>;
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
  /** Capsules whose memory is on its way back, and since when. */
  readonly #underWay = new Map<string, number>();
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
        this.#underWay.clear();
        return;
      }
      this.#short++;
      if (this.#short < shortReadings && !host.memory.isStalling()) return;
      await this.#relieve();
      this.#short = 0;
    } catch (error) {
      log.error({ err: error }, "the host is short of memory: its capsules could not be measured");
    }
  }

  #isShort(): boolean {
    return this.#options.host.memory.spareBytes() < 0;
  }

  /** Pauses one capsule. */
  async #relieve(): Promise<void> {
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
      const relief = await this.#pauseWithin(next);
      if (relief === "paused") {
        this.#underWay.delete(next.id);
        return;
      }
      if (relief === "impossible") continue;
      const sinceMs = this.#underWay.get(next.id) ?? begunMs;
      this.#underWay.set(next.id, sinceMs);
      if (clock.ticks() - sinceMs < patienceMs) return;
      late.add(next.id);
    }
  }

  /** A pause that takes longer goes on, and is under way then. */
  async #pauseWithin(capsule: RunningCapsule): Promise<Relief> {
    const { promise, resolve } = Promise.withResolvers<Relief>();
    const cancel = this.#options.clock.after(patienceMs, () => resolve("underWay"));
    void this.#pause(capsule).then(resolve);
    const relief = await promise;
    cancel();
    return relief;
  }

  /** Never rejects. */
  async #pause({ id, bytes }: RunningCapsule): Promise<Relief> {
    const { pause, clock, log, onPause } = this.#options;
    try {
      const relief = await pause(id);
      if (relief !== "paused") return relief;
      log.warn({ capsule: id, bytes }, "the host is short of memory: a capsule was paused");
      onPause("done");
      return relief;
    } catch (error) {
      this.#failed.set(id, clock.ticks() + failedMs);
      log.error({ err: error, capsule: id, bytes }, "the host is short of memory: a capsule could not be paused");
      onPause("failed");
      return "impossible";
    }
  }
}

/**
 * Undefined when all are skipped. The skipped ones count for their teams. `late`: those whose memory was waited for too long;
 * while they are of a team over its share, no team within its share pays for them.
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
