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
 *
 * docs/adr/0025 has the reasons.
 */
import type { Host } from "../host/host.ts";
import type { Clock } from "./clock.ts";
import type { CapsuleStore } from "./store.ts";
import type { Log } from "./transitions.ts";

const intervalMs = 1_000;
/** In a row. The memory of a VM that was just killed, and the page cache, are given back within this time. */
const shortReadings = 3;
const failedMs = 30_000;

export interface MemoryWatchOptions {
  host: Pick<Host, "memory" | "memoryByCapsule">;
  store: Pick<CapsuleStore, "get">;
  /** Pauses a capsule; resolves when its VM has ended, with false when it cannot be paused in its state. */
  pause: (id: string) => Promise<boolean>;
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
    while (!this.#isStopped && this.#isShort()) {
      const next = chooseToPause(running, capacityBytes, skipped);
      if (next === undefined) {
        if (this.#isReported) return;
        log.error({ running: running.length }, "the host is short of memory, and no capsule can be paused now");
        this.#isReported = true;
        return;
      }
      skipped.add(next.id);
      if (await this.#pause(next)) return;
    }
  }

  async #pause({ id, bytes }: RunningCapsule): Promise<boolean> {
    const { pause, clock, log, onPause } = this.#options;
    try {
      if (!(await pause(id))) return false;
      log.warn({ capsule: id, bytes }, "the host is short of memory: a capsule was paused");
      onPause("done");
      return true;
    } catch (error) {
      this.#failed.set(id, clock.ticks() + failedMs);
      log.error({ err: error, capsule: id, bytes }, "the host is short of memory: a capsule could not be paused");
      onPause("failed");
      return false;
    }
  }
}

/** Undefined when all are skipped. The skipped ones count for their teams. */
export function chooseToPause(
  running: readonly RunningCapsule[],
  capacityBytes: number,
  skipped: ReadonlySet<string>,
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
  return largest(running);
}
