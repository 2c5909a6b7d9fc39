/**
 * QEMUs started before it is known for whom: each stands on one base or template, in one shape, without a disk layer and
 * without a saved VM. A capsule that is resumed, or created past the pool, takes one over and is spared the start of a
 * process and its jail; everything of its own is given to it then, and stays in the capsule's folder all the time.
 *
 *      work/blank-<nonce>/    journal, sockets and device state, until it is claimed
 *      work/hatch-<nonce>/    empty but for the moment in which QEMU opens the disk layer
 *
 * Its journal stands until the capsule's own names the process; so after a crash it is ended like all that is in `work/`,
 * and the capsule goes the way of one whose start was cut off. None is ever bound to a capsule that is paused.
 */
import { randomBytes } from "node:crypto";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { Blank, SavedVm, Vm, Vmm, VmProcess, VmSpec } from "../../vmm/vmm.ts";
import type { Pressure } from "../capacity/pressure.ts";
import type { Slots } from "../capacity/start-scheduler.ts";
import { dirtyBytes } from "../checkpoint/quiesce.ts";
import { type CapsuleFile, diskName, writeVm } from "../disk/capsule-folder.ts";
import { freshFolder } from "../disk/files.ts";
import type { Sources } from "../images/template-store.ts";
import type { Step } from "../steps.ts";
import { Stock, type Stocked } from "./demand-pool.ts";
import { Rehearsals, type RehearsalsOptions } from "./translation-warmup.ts";

/** See config.ts. */
export interface BlankSettings {
  /** Most that wait together; 0: none. */
  most: number;
  /** Most memory of all that wait together. */
  budgetBytes: number;
  /** Told of what could not be started, or not be claimed; the capsule is then started without. */
  onFailure: (error: unknown) => void;
}

export interface BlanksOptions extends BlankSettings, RehearsalsOptions {
  sources: Pick<Sources, "below" | "spec" | "image">;
  vmm: Pick<Vmm, "blank" | "hasBlanks">;
  slots: Slots;
  pressure: Pressure;
  step: Step;
}

/** Who claims a blank, and until when. */
export interface Claimant {
  onProcess: (nonce: string, process: VmProcess) => void;
  unwanted?: AbortSignal | undefined;
}

/** What a capsule must have in common with a blank. */
type Kind = Omit<CapsuleFile, "format">;

interface Waiting extends Stocked {
  blank: Blank;
  origin: string;
}

const usualBytes = 40 << 20;

export class Blanks {
  readonly #o: BlanksOptions;
  readonly #rehearsals: Rehearsals;
  readonly #stock: Stock<Kind, Waiting>;

  constructor(options: BlanksOptions) {
    this.#o = options;
    this.#rehearsals = new Rehearsals(options);
    const { most, budgetBytes, pressure, onFailure, vmm } = options;
    this.#stock = new Stock({
      keyOf: ({ origin, originSha256, image, machine }) => JSON.stringify([origin, originSha256, image, machine]),
      make: (kind, unwanted) => this.#make(kind, unwanted),
      end: ({ blank }) => this.#end(blank),
      nameOf: () => "a QEMU",
      most: vmm.hasBlanks ? most : 0,
      usualBytes,
      ...{ budgetBytes, pressure, onFailure },
    });
  }

  /** Begins to start them. Call when nothing of an earlier life is left. */
  open(): void {
    this.#stock.open();
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
    { onProcess, unwanted }: Claimant,
  ): Promise<Vm | undefined> {
    const blank = this.#stock.take(capsule)?.blank;
    if (blank === undefined) return undefined;
    const { paths, sources, step, onFailure } = this.#o;
    const { nonce } = blank.spec;
    const journal = { nonce, process: blank.process };
    let vm: Vm | undefined;
    try {
      await writeVm(paths.capsule(id), journal);
      step("blank.claimed");
      onProcess(nonce, blank.process);
      vm = await blank.claim(sources.spec(id, capsule, journal), saved);
      await this.#forget(blank);
      return vm;
    } catch (error) {
      if (unwanted?.aborted !== true) onFailure(error);
      await vm?.kill();
      await this.#end(blank).catch(onFailure);
      return undefined;
    }
  }

  /** Folders, relative to the data folder, of the checkpoints that they stand on. */
  origins(): string[] {
    return this.#stock.items().map(({ origin }) => origin);
  }

  state(): { ready: number; target: number } {
    return this.#stock.state();
  }

  /** Ends all that stand on this checkpoint, given relative to the data folder. */
  drop(origin: string): Promise<void> {
    return this.#stock.drop((kind) => kind.origin === origin);
  }

  /** Ends them all. */
  close(): Promise<void> {
    return this.#stock.close();
  }

  async #make(kind: Kind, unwanted: AbortSignal): Promise<Waiting> {
    const { paths, sources, slots, step } = this.#o;
    const nonce = randomBytes(16).toString("hex");
    const [dir, hatch] = [paths.scratch(`blank-${nonce}`), paths.scratch(`hatch-${nonce}`)];
    const files = { ...sources.below(kind), dir, disk: join(hatch, diskName) };
    const spec = { name: "blank", nonce, machine: kind.machine, files };
    let blank: Blank | undefined;
    try {
      return await slots.run(
        async () => {
          unwanted.throwIfAborted();
          blank = await this.#start(spec, hatch);
          step("blank.started");
          await this.#rehearsals.run(blank, kind, unwanted);
          step("blank.ready");
          return { blank, origin: kind.origin, costBytes: dirtyBytes(blank), ended: blank.ended };
        },
        "later",
        unwanted,
      );
    } catch (error) {
      await blank?.kill();
      await Promise.all([dir, hatch].map((path) => rm(path, { recursive: true, force: true })));
      throw error;
    }
  }

  async #start(spec: VmSpec, hatch: string): Promise<Blank> {
    const { nonce, files } = spec;
    await Promise.all([files.dir, hatch].map(freshFolder));
    await writeVm(files.dir, { nonce, process: null });
    let journalled: Promise<void> | undefined;
    const blank = await this.#o.vmm.blank(spec, (process) => {
      journalled = writeVm(files.dir, { nonce, process });
      journalled.catch(() => {});
    });
    await journalled;
    return blank;
  }

  async #end(blank: Blank): Promise<void> {
    await blank.kill();
    await this.#forget(blank);
  }

  async #forget({ spec }: Blank): Promise<void> {
    const { dir, disk } = spec.files;
    await Promise.all([dir, join(disk, "..")].map((path) => rm(path, { recursive: true, force: true })));
  }
}
