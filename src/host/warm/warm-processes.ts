/**
 * Warm processes: QEMUs started on a base or template, in one shape, without a disk layer and not bound to a capsule. A
 * capsule that is resumed, or created when the warm pool is empty, claims one and saves the start of a process and its jail.
 * Its files stay in its own folder all the time.
 *
 *      work/warm-<nonce>/        journal, sockets and device state, until the process is claimed
 *      work/handover-<nonce>/    empty except while QEMU opens the disk layer
 *
 * The journal stays until the capsule's own journal names the process. After a crash the process is ended with everything in
 * `work/`, and the capsule is recovered like one whose start was cut off. No process is ever bound to a paused capsule.
 */
import { rm } from "node:fs/promises";
import { dirtyBytes } from "../../vmm/memory/pagemap.ts";
import { newNonce } from "../../vmm/process.ts";
import type { Vm, Vmm, WarmProcess, WarmSpec } from "../../vmm/vmm.ts";
import type { Pressure } from "../capacity/memory.ts";
import type { StartScheduler } from "../capacity/start-scheduler.ts";
import { type CapsuleFile, writeVm } from "../disk/capsule-folder.ts";
import { freshFolder } from "../disk/files.ts";
import { encodeMachine } from "../disk/machine-record.ts";
import type { PoolState } from "../host.ts";
import type { TemplateStore } from "../images/template-store.ts";
import { startJournalled } from "../launch/journalled-start.ts";
import type { ProcessSource, SavedGuest } from "../launch/launcher.ts";
import type { Step } from "../steps.ts";
import { DemandPool, type PoolItem } from "./demand-pool.ts";
import { TranslationWarmup, type TranslationWarmupOptions } from "./translation-warmup.ts";

export interface WarmProcessSettings {
  /** Limit of the number of waiting processes; 0: none. */
  maxCount: number;
  /** Limit of their memory. */
  budgetBytes: number;
  /** Called when a process could not be started or claimed; the capsule is then started without one. */
  onFailure: (error: unknown) => void;
}

export interface WarmProcessesOptions extends WarmProcessSettings, TranslationWarmupOptions {
  templates: Pick<TemplateStore, "sharedFiles" | "spec" | "image">;
  vmm: Pick<Vmm, "startWarm" | "hasWarmProcesses">;
  scheduler: StartScheduler;
  pressure: Pressure;
  step: Step;
}

interface ReadyProcess extends PoolItem {
  warm: WarmProcess;
  parent: string;
}

const expectedBytes = 40 << 20;

/** The properties that a capsule shares with a process, whatever the order of the fields in its file. */
function nameOf({ parent, parentSha256, image, machine }: CapsuleFile): string {
  return JSON.stringify([parent, parentSha256, image.name, image.hash, encodeMachine(machine)]);
}

export class WarmProcesses implements ProcessSource {
  readonly #options: WarmProcessesOptions;
  readonly #translationWarmup: TranslationWarmup;
  readonly #pool: DemandPool<CapsuleFile, ReadyProcess>;

  constructor(options: WarmProcessesOptions) {
    this.#options = options;
    this.#translationWarmup = new TranslationWarmup(options);
    const { maxCount, budgetBytes, pressure, onFailure, vmm } = options;
    this.#pool = new DemandPool({
      nameOf,
      make: (key, signal) => this.#make(key, signal),
      end: ({ warm }) => this.#end(warm),
      describe: () => "a QEMU",
      maxCount: vmm.hasWarmProcesses ? maxCount : 0,
      expectedBytes,
      ...{ budgetBytes, pressure, onFailure },
    });
  }

  open(): void {
    this.#pool.open();
  }

  /** The capsule's journal names the process before anything else is done with it. */
  async claimProcess(
    id: string,
    capsule: CapsuleFile,
    saved: SavedGuest,
    signal?: AbortSignal,
  ): Promise<Vm | undefined> {
    const warm = this.#pool.claim(capsule)?.warm;
    if (warm === undefined) return undefined;
    const { paths, templates, step, onFailure } = this.#options;
    const { protocol, revision: restores = null } = saved;
    const journal = { nonce: warm.spec.nonce, process: warm.process, protocol, restores };
    let vm: Vm | undefined;
    try {
      await writeVm(paths.capsule(id), journal);
      step("warm.claimed");
      vm = await warm.claim(templates.spec(id, capsule, journal), saved, signal);
      await this.#removeFolders(warm);
      return vm;
    } catch (error) {
      if (signal?.aborted !== true) onFailure(error);
      await vm?.kill();
      await this.#end(warm).catch(onFailure);
      return undefined;
    }
  }

  /** Folders, relative to the data folder, of the checkpoints that the processes use. */
  parents(): string[] {
    return this.#pool.items().map(({ parent }) => parent);
  }

  state(): PoolState {
    return this.#pool.state();
  }

  /** Ends all processes that use this checkpoint, given relative to the data folder. */
  drop(parent: string): Promise<void> {
    return this.#pool.drop((key) => key.parent === parent);
  }

  close(): Promise<void> {
    return this.#pool.close();
  }

  #make(key: CapsuleFile, signal: AbortSignal): Promise<ReadyProcess> {
    const { paths, templates, scheduler, step } = this.#options;
    const nonce = newNonce();
    const spec: WarmSpec = {
      ...{ name: "warm", nonce, machine: key.machine },
      files: { ...templates.sharedFiles(key), dir: paths.scratch(`warm-${nonce}`) },
      handoverDir: paths.scratch(`handover-${nonce}`),
    };
    return scheduler.runBackground(async () => {
      let warm: WarmProcess | undefined;
      try {
        warm = await this.#start(spec, signal);
        step("warm.started");
        await this.#translationWarmup.run(warm, key, signal);
        step("warm.ready");
        return { warm, parent: key.parent, costBytes: dirtyBytes(warm), ended: warm.ended };
      } catch (error) {
        await warm?.kill();
        await this.#removeFolders({ spec });
        throw error;
      }
    }, signal);
  }

  async #start(spec: WarmSpec, signal: AbortSignal): Promise<WarmProcess> {
    const { nonce, files, handoverDir } = spec;
    signal.throwIfAborted();
    await Promise.all([files.dir, handoverDir].map(freshFolder));
    return startJournalled(files.dir, { nonce }, (onSpawn) => this.#options.vmm.startWarm(spec, onSpawn, signal));
  }

  async #end(warm: WarmProcess): Promise<void> {
    await warm.kill();
    await this.#removeFolders(warm);
  }

  async #removeFolders({ spec }: Pick<WarmProcess, "spec">): Promise<void> {
    const folders = [spec.files.dir, spec.handoverDir];
    await Promise.all(folders.map((path) => rm(path, { recursive: true, force: true })));
  }
}
