/** Saves a guest into its checkpoint, takes a save back, and captures a saved guest into a template. host.ts has the contract. */
import { copyFile, rm } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { allSettledOrThrow } from "../../vmm/all-settled.ts";
import type { MergeLayer } from "../../vmm/layer-merge.ts";
import { flattenMemory } from "../../vmm/memory/base-memory.ts";
import { dirtyBytes } from "../../vmm/memory/pagemap.ts";
import { copySparse } from "../../vmm/sparse-copy.ts";
import type { FairSlots } from "../capacity/fair-slots.ts";
import { withDeadline } from "../deadline.ts";
import { checkpointName, diskName, removeCheckpoint } from "../disk/capsule-folder.ts";
import { diffName, diskLayerOf, fileNames, writeManifest } from "../disk/checkpoint-folder.ts";
import { type DiskSpace, type Reservation, writtenIn } from "../disk/disk-space.ts";
import { allocatedBytes, explainSpace, freshFolder, publish, syncFileAndTimes, syncFolder } from "../disk/files.ts";
import type { Saved } from "../disk/manifest.ts";
import type { Paths } from "../disk/paths.ts";
import type { LiveGuest } from "../guest.ts";
import type { Captured, SaveTurn, Turn } from "../host.ts";
import type { TemplateStore } from "../images/template-store.ts";
import type { Vmms } from "../qemu-builds/vmms.ts";
import type { Step } from "../steps.ts";
import { Quiesce, resumeAfterStop, type SavePurpose } from "./quiesce.ts";
import type { Verifier } from "./verifier.ts";

/**
 * Saves at the same time: further ones would add no throughput, since a save copies memory and writes to one disk. At most 8, which
 * leave half of the thread pool free: `capsule` sets its size.
 */
export const savesAtOnce = Math.min(8, Math.max(2, availableParallelism()));

/**
 * Copies of whole disk layers at the same time: merges of captures, and resumes that work on a copy. Each may take minutes, so
 * they wait neither in the line of saves nor in that of starts.
 */
export const copiesAtOnce = 2;

export interface CheckpointerOptions {
  paths: Paths;
  vmm: Pick<Vmms, "requireKept">;
  space: DiskSpace;
  /** For saves. */
  slots: FairSlots;
  /** For merges. */
  copies: Pick<FairSlots, "run">;
  templates: Pick<TemplateStore, "image" | "layer">;
  verifier: Verifier;
  mergeLayer: MergeLayer;
  /** Deadline of an agent's answers after a save was taken back. */
  wakeMs: number;
  step: Step;
}

export class Checkpointer {
  readonly #options: CheckpointerOptions;

  constructor(options: CheckpointerOptions) {
    this.#options = options;
  }

  /** A save that finds a free slot begins at once. */
  save(live: LiveGuest, purpose: SavePurpose, { owner, revision, signal }: SaveTurn): Promise<void> {
    return this.#options.slots.run(owner, () => this.#save(live, purpose, revision), signal);
  }

  async #save(live: LiveGuest, purpose: SavePurpose, revision: number): Promise<void> {
    const { paths, vmm, verifier, step } = this.#options;
    await vmm.requireKept(live.vm.spec.machine, `capsule ${live.id}`);
    const scratch = paths.scratch(`save-${live.id}`);
    const checkpoint = join(paths.capsule(live.id), checkpointName);
    const quiesce = new Quiesce(live, purpose);
    verifier.forget(checkpoint);
    try {
      using room = this.#reserve(scratch, live, purpose);
      // Runs while the guest freezes and competes with it for CPU, so it does only what cannot be done earlier.
      await allSettledOrThrow([
        freshFolder(scratch),
        removeCheckpoint(paths.capsule(live.id)), // of a resume that was cut off; afterwards a checkpoint means a complete save
      ]);
      await this.#write(scratch, live, quiesce, revision, room);
      room[Symbol.dispose]();
      await publish(scratch, checkpoint);
    } catch (error) {
      quiesce.giveUp();
      if (quiesce.isServed) await this.unsave(live).catch(() => {});
      else live.thaw().catch(() => {}); // not awaited: a QEMU that hangs delivers it, after the FREEZE, when it runs again
      await rm(scratch, { recursive: true, force: true }).catch(() => {});
      throw explainSpace(error, `pausing capsule ${live.id}`);
    }
    verifier.hashLater(checkpoint);
    step("save.published");
  }

  #reserve(scratch: string, live: LiveGuest, purpose: SavePurpose): Reservation {
    const { space } = this.#options;
    const written = () => writtenIn(scratch);
    if (purpose === "capture") return space.reserve(dirtyBytes(live.vm), `capturing capsule ${live.id}`, written);
    return space.reserveForPause(dirtyBytes(live.vm), `pausing capsule ${live.id}`, written);
  }

  /** The pause itself: work in one array runs concurrently. Everything in `scratch` is durable when it resolves. */
  async #write(scratch: string, live: LiveGuest, quiesce: Quiesce, revision: number, room: Reservation): Promise<void> {
    const { paths, step } = this.#options;
    const about = { ...this.#about(live), kind: "pause", revision } as const;
    const layer = join(paths.capsule(live.id), diskName);
    const names = [fileNames.state, diffName];
    const quiesced = quiesce.done().then(() => step("save.frozen"));
    await using save = live.vm.openSave({ state: join(scratch, fileNames.state), memory: join(scratch, diffName) });
    for (;;) {
      await allSettledOrThrow([save.prepare(), quiesced]);
      await save.stopCpus();
      step("save.stopped");
      room.grow(dirtyBytes(live.vm)); // the guest has written until now
      const { memoryBytes } = await save.copyMemory();
      const written = save.finish().then(() => step("save.written"));
      const pending = { [diffName]: { bytes: memoryBytes, written } };
      const saved = { ...about, frozen: quiesce.isFrozen, diskLayer: diskLayerOf(layer) };
      const listed = writeManifest(scratch, saved, names, { hashAll: false, pending });
      const synced = this.#syncDiskLayer(live.id);
      const [isConsistent] = await allSettledOrThrow([save.isConsistent(), written, listed, synced]);
      if (isConsistent) return;
    }
  }

  /** The part of a manifest that is equal for a pause of this guest and a capture. */
  #about(live: LiveGuest): Pick<Saved, "machine" | "agent" | "layers"> {
    const { machine, image } = live.capsule;
    return { machine, agent: { protocol: live.protocol }, layers: [this.#options.templates.layer(image)] };
  }

  /**
   * QEMU syncs only its own writes; the layer and the capsule's folder may never have been synced. Call after QEMU's last
   * write to the layer: the manifest names its time, which has to be the same after a power cut.
   */
  async #syncDiskLayer(id: string): Promise<void> {
    const { paths } = this.#options;
    await allSettledOrThrow([syncFileAndTimes(join(paths.capsule(id), diskName)), syncFolder(paths.capsules)]);
  }

  async unsave(live: LiveGuest): Promise<void> {
    const { paths, verifier, wakeMs } = this.#options;
    let isRunning = false;
    try {
      verifier.forget(join(paths.capsule(live.id), checkpointName));
      await removeCheckpoint(paths.capsule(live.id));
      await live.vm.resume();
      isRunning = true;
      await withDeadline(wakeMs, `releasing capsule ${live.id}`, resumeAfterStop(live));
    } catch (error) {
      // A VM that waits for the host's disk receives the THAW when there is space again.
      if (!isRunning || !(await live.isWaitingForDisk()))
        live.markLost("it could not be set running again after a failed pause");
      throw error;
    }
  }

  /** In a slot of `copies`. */
  capture(live: LiveGuest, storage: string, { owner, signal }: Turn): Promise<Captured> {
    return this.#options.copies.run(owner, () => this.#capture(live, storage), signal);
  }

  async #capture(live: LiveGuest, storage: string): Promise<Captured> {
    const { paths, step } = this.#options;
    const target = paths.template(storage);
    const scratch = paths.scratch(`capture-${storage}`);
    try {
      await this.#merge(scratch, live);
      step("capture.written");
      await publish(scratch, target);
      step("capture.published");
      return { sizeBytes: await allocatedBytes(target) };
    } catch (error) {
      await rm(scratch, { recursive: true, force: true }).catch(() => {});
      throw explainSpace(error, `capturing capsule ${live.id}`);
    }
  }

  /**
   * Makes a self-contained checkpoint of a saved guest: its memory merged with its parent's, its disk layer with its parent's.
   * However many generations came before, the result depends on the image alone.
   */
  async #merge(scratch: string, live: LiveGuest): Promise<void> {
    const { paths, space, templates, mergeLayer } = this.#options;
    const { image } = live.capsule;
    const [folder, parent] = [paths.capsule(live.id), join(paths.data, live.capsule.parent)];
    const checkpoint = join(folder, checkpointName);
    const needBytes = (await allocatedBytes(parent)) + (await allocatedBytes(folder)) + dirtyBytes(live.vm);
    using _room = space.reserve(needBytes, `capturing capsule ${live.id}`, () => writtenIn(scratch));
    await freshFolder(scratch);
    const mergeDisk = async () => {
      const layer = join(scratch, fileNames.disk);
      await copySparse(join(folder, diskName), layer);
      await mergeLayer({ layer, parent: join(parent, fileNames.disk), root: templates.image(image).root });
    };
    const memory = { base: join(parent, fileNames.memory), merged: join(scratch, fileNames.memory) };
    await allSettledOrThrow([
      copyFile(join(checkpoint, fileNames.state), join(scratch, fileNames.state)),
      flattenMemory(memory.base, join(checkpoint, diffName), memory.merged),
      mergeDisk(),
    ]);
    const about = { kind: "template", revision: null, frozen: true, diskLayer: null } as const;
    await writeManifest(
      scratch,
      { ...this.#about(live), ...about },
      [fileNames.state, fileNames.memory, fileNames.disk],
      { hashAll: true },
    );
  }
}
