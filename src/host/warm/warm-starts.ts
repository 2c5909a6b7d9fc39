/**
 * The only way into everything that is started ahead of time: the warm pool (parked capsules, for creates) and the warm
 * processes (QEMUs without a capsule, for resumes and for creates that find the pool empty).
 *
 * All of it is an optimization. Without it, or with both budgets at 0, every create and resume works the same, only slower:
 * a capsule that finds nothing here is started in a new process.
 */
import { relative } from "node:path";
import type { Vm } from "../../vmm/vmm.ts";
import type { Pressure } from "../capacity/memory.ts";
import type { CapsuleFile } from "../disk/capsule-folder.ts";
import type { Origin, PoolState, Shape } from "../host.ts";
import { Launcher, type LauncherOptions, type ProcessSource, type SavedGuest } from "../launch/launcher.ts";
import type { Vmms } from "../qemu-builds/vmms.ts";
import { type WarmCapsule, WarmCapsules, WarmPool, type WarmPoolSettings } from "./warm-pool.ts";
import { WarmProcesses, type WarmProcessSettings } from "./warm-processes.ts";

export interface WarmSettings {
  pool: WarmPoolSettings;
  processes: WarmProcessSettings;
}

export class WarmStarts implements ProcessSource {
  readonly #data: string;
  readonly #pool: WarmPool;
  readonly #processes: WarmProcesses;
  #isKept = true;

  constructor(
    launch: LauncherOptions & { vmm: Pick<Vmms, "onReplaced"> },
    { pool, processes }: WarmSettings,
    memory: Pressure,
  ) {
    const pressure: Pressure = {
      isRising: () => !this.#isKept || memory.isRising(),
      isHigh: () => !this.#isKept || memory.isHigh(),
    };
    this.#data = launch.paths.data;
    this.#processes = new WarmProcesses({ ...launch, ...processes, pressure });
    const capsules = new WarmCapsules({ ...launch, launcher: new Launcher(launch) });
    this.#pool = new WarmPool({ ...pool, capsules, pressure });
    launch.vmm.onReplaced(() => void this.#pool.renew());
  }

  /** Begins to fill both. Call when everything that an earlier daemon left has been ended. */
  open(): void {
    this.#pool.open();
    this.#processes.open();
  }

  /** False: nothing is ready, as while the host is short of memory. */
  keep(isKept: boolean): void {
    this.#isKept = isKept;
  }

  /** The id of a warm capsule, to be claimed or removed. Undefined when there is none. */
  reserve(origin: Origin, shape: Shape): string | undefined {
    return this.#pool.reserve({ origin, shape });
  }

  /** The reserved capsule of this id, from now on the caller's. */
  claim(id: string): WarmCapsule | undefined {
    return this.#pool.claim(id);
  }

  claimProcess(id: string, capsule: CapsuleFile, saved: SavedGuest, signal?: AbortSignal): Promise<Vm | undefined> {
    return this.#processes.claimProcess(id, capsule, saved, signal);
  }

  /** How many capsules are reserved and not claimed yet. */
  get reserved(): number {
    return this.#pool.reserved;
  }

  /** Whether a capsule folder belongs to the pool, so that it needs no record. */
  holds(id: string): boolean {
    return this.#pool.holds(id);
  }

  /** Folders, relative to the data folder, of the checkpoints that warm processes use. A warm capsule's folder names its own. */
  parents(): string[] {
    return this.#processes.parents();
  }

  pool(): PoolState {
    return this.#pool.state();
  }

  processes(): PoolState {
    return this.#processes.state();
  }

  /** Ends the warm capsules of a template from which no new capsule starts. */
  retireTemplate(storage: string): Promise<void> {
    return this.#pool.drop(storage);
  }

  /** Ends everything that uses a template's files, which are in `folder`. */
  async removeTemplate(storage: string, folder: string): Promise<void> {
    await Promise.all([this.#pool.drop(storage), this.#processes.drop(relative(this.#data, folder))]);
  }

  /** Ends the process, if any, that is being made for a base whose files will be removed. */
  removeBase(folder: string): Promise<void> {
    return this.#processes.drop(relative(this.#data, folder));
  }

  async close(): Promise<void> {
    await Promise.all([this.#pool.close(), this.#processes.close()]);
  }
}
