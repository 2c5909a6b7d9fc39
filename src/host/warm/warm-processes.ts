/**
 * QEMUs started before it is known for whom: each stands on one base or template, in one shape, without a disk layer and
 * without a saved VM. A capsule that is resumed, or created past the pool, takes one over and is spared the start of a
 * process and its jail; everything of its own is given to it then, and stays in the capsule's folder all the time.
 *
 *      work/warm-<nonce>/    journal, sockets and device state, until it is claimed
 *      work/handover-<nonce>/    empty but for the moment in which QEMU opens the disk layer
 *
 * Its journal stands until the capsule's own names the process; so after a crash it is ended like all that is in `work/`,
 * and the capsule goes the way of one whose start was cut off. None is ever bound to a capsule that is paused.
 */
import { randomBytes } from "node:crypto";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { SavedVm, Vm, Vmm, VmProcess, VmSpec, WarmProcess } from "../../vmm/vmm.ts";
import type { Pressure } from "../capacity/pressure.ts";
import type { StartScheduler } from "../capacity/start-scheduler.ts";
import { dirtyBytes } from "../checkpoint/quiesce.ts";
import { type CapsuleFile, diskName, writeVm } from "../disk/capsule-folder.ts";
import { freshFolder } from "../disk/files.ts";
import type { TemplateStore } from "../images/template-store.ts";
import type { Step } from "../steps.ts";
import { DemandPool, type PoolItem } from "./demand-pool.ts";
import { TranslationWarmup, type TranslationWarmupOptions } from "./translation-warmup.ts";

/** See config.ts. */
export interface WarmProcessSettings {
  /** Most that wait together; 0: none. */
  maxCount: number;
  /** Most memory of all that wait together. */
  budgetBytes: number;
  /** Told of what could not be started, or not be claimed; the capsule is then started without. */
  onFailure: (error: unknown) => void;
}

export interface WarmProcessesOptions extends WarmProcessSettings, TranslationWarmupOptions {
  sources: Pick<TemplateStore, "sharedFiles" | "spec" | "image">;
  vmm: Pick<Vmm, "startWarm" | "hasWarmProcesses">;
  slots: StartScheduler;
  pressure: Pressure;
  step: Step;
}

/** Who claims a blank, and until when. */
export interface ClaimOptions {
  onProcess: (nonce: string, process: VmProcess) => void;
  signal?: AbortSignal | undefined;
}

/** What a capsule must have in common with a blank. */
type WarmProcessKey = Omit<CapsuleFile, "format">;

interface ReadyProcess extends PoolItem {
  warm: WarmProcess;
  origin: string;
}

const usualBytes = 40 << 20;

export class WarmProcesses {
  readonly #options: WarmProcessesOptions;
  readonly #translationWarmup: TranslationWarmup;
  readonly #pool: DemandPool<WarmProcessKey, ReadyProcess>;

  constructor(options: WarmProcessesOptions) {
    this.#options = options;
    this.#translationWarmup = new TranslationWarmup(options);
    const { maxCount: most, budgetBytes, pressure, onFailure, vmm } = options;
    this.#pool = new DemandPool({
      keyOf: ({ origin, originSha256, image, machine }) => JSON.stringify([origin, originSha256, image, machine]),
      make: (kind, signal) => this.#make(kind, signal),
      end: ({ warm }) => this.#end(warm),
      nameOf: () => "a QEMU",
      maxCount: vmm.hasWarmProcesses ? most : 0,
      expectedBytes: usualBytes,
      ...{ budgetBytes, pressure, onFailure },
    });
  }

  /** Begins to start them. Call when nothing of an earlier life is left. */
  open(): void {
    this.#pool.open();
  }

  /**
   * The saved VM of a capsule, loaded and stopped, in a QEMU that waited for one of its kind, and journalled in the
   * capsule's folder. Undefined when there was none, or when it failed: then nothing is left of it. `onProcess` is told of
   * the process before anything is done with it; whoever ends it then fires `unwanted` before.
   */
  async claim(
    id: string,
    capsule: CapsuleFile,
    saved: SavedVm,
    { onProcess, signal }: ClaimOptions,
  ): Promise<Vm | undefined> {
    const warm = this.#pool.claim(capsule)?.warm;
    if (warm === undefined) return undefined;
    const { paths, sources, step, onFailure } = this.#options;
    const { nonce } = warm.spec;
    const journal = { nonce, process: warm.process };
    let vm: Vm | undefined;
    try {
      await writeVm(paths.capsule(id), journal);
      step("warm.claimed");
      onProcess(nonce, warm.process);
      vm = await warm.claim(sources.spec(id, capsule, journal), saved);
      await this.#forget(warm);
      return vm;
    } catch (error) {
      if (signal?.aborted !== true) onFailure(error);
      await vm?.kill();
      await this.#end(warm).catch(onFailure);
      return undefined;
    }
  }

  /** Folders, relative to the data folder, of the checkpoints that they stand on. */
  origins(): string[] {
    return this.#pool.items().map(({ origin }) => origin);
  }

  state(): { ready: number; target: number } {
    return this.#pool.state();
  }

  /** Ends all that stand on this checkpoint, given relative to the data folder. */
  drop(origin: string): Promise<void> {
    return this.#pool.drop((kind) => kind.origin === origin);
  }

  /** Ends them all. */
  close(): Promise<void> {
    return this.#pool.close();
  }

  async #make(kind: WarmProcessKey, signal: AbortSignal): Promise<ReadyProcess> {
    const { paths, sources, slots, step } = this.#options;
    const nonce = randomBytes(16).toString("hex");
    const [dir, handover] = [paths.scratch(`warm-${nonce}`), paths.scratch(`handover-${nonce}`)];
    const files = { ...sources.sharedFiles(kind), dir, disk: join(handover, diskName) };
    const spec = { name: "warm", nonce, machine: kind.machine, files };
    let warm: WarmProcess | undefined;
    try {
      return await slots.run(
        async () => {
          signal.throwIfAborted();
          warm = await this.#start(spec, handover);
          step("warm.started");
          await this.#translationWarmup.run(warm, kind, signal);
          step("warm.ready");
          return { warm, origin: kind.origin, costBytes: dirtyBytes(warm), ended: warm.ended };
        },
        "later",
        signal,
      );
    } catch (error) {
      await warm?.kill();
      await Promise.all([dir, handover].map((path) => rm(path, { recursive: true, force: true })));
      throw error;
    }
  }

  async #start(spec: VmSpec, handover: string): Promise<WarmProcess> {
    const { nonce, files } = spec;
    await Promise.all([files.dir, handover].map(freshFolder));
    await writeVm(files.dir, { nonce, process: null });
    let journalled: Promise<void> | undefined;
    const warm = await this.#options.vmm.startWarm(spec, (process) => {
      journalled = writeVm(files.dir, { nonce, process });
      journalled.catch(() => {});
    });
    await journalled;
    return warm;
  }

  async #end(warm: WarmProcess): Promise<void> {
    await warm.kill();
    await this.#forget(warm);
  }

  async #forget({ spec }: WarmProcess): Promise<void> {
    const { dir, disk } = spec.files;
    await Promise.all([dir, join(disk, "..")].map((path) => rm(path, { recursive: true, force: true })));
  }
}
