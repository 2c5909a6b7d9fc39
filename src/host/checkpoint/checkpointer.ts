/** Saves a guest into its checkpoint, takes a save back, and captures a saved guest into a template. host.ts has the contract. */
import { copyFile, rm } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { allSettledOrThrow } from "../../vmm/all-settled.ts";
import type { MergeLayer } from "../../vmm/layer-merge.ts";
import { flattenMemory } from "../../vmm/memory/base-memory.ts";
import { dirtyBytes } from "../../vmm/memory/pagemap.ts";
import { copySparse } from "../../vmm/sparse-copy.ts";
import type { VmSave } from "../../vmm/vmm.ts";
import { FairSlots } from "../capacity/fair-slots.ts";
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
/** Saves of one owner that have sent FREEZE. Its further guests run on until one of these is saved; two fill all slots and the line. */
export const frozenPerOwner = 2 * savesAtOnce;

/**
 * Copies of whole disk layers at the same time: merges of captures, and resumes that work on a copy. Each may take minutes, so
 * they wait neither in the line of saves nor in that of starts.
 */
const copiesAtOnce = 2;

/** One owner never has all slots, so the copies of others need not wait for the minutes that its own take. */
export function lineOfCopies(): FairSlots {
  return new FairSlots(copiesAtOnce, { perOwner: copiesAtOnce - 1 });
}

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

interface Saving extends SaveTurn {
  live: LiveGuest;
  purpose: SavePurpose;
}

export class Checkpointer {
  readonly #options: CheckpointerOptions;
  /** Before the slots: it bounds how many guests of an owner stand still in the line for them. */
  readonly #freezing = new FairSlots(Number.POSITIVE_INFINITY, { perOwner: frozenPerOwner });

  constructor(options: CheckpointerOptions) {
    this.#options = options;
  }

  /** A save that finds a free slot begins at once. No slot is held while the agent is waited for (docs/adr/0033). */
  save(live: LiveGuest, purpose: SavePurpose, turn: SaveTurn): Promise<void> {
    return this.#freezing.run(turn.owner, () => this.#save({ live, purpose, ...turn }), turn.signal);
  }

  async #save(saving: Saving): Promise<void> {
    const { live, purpose } = saving;
    const { paths, vmm, verifier, step } = this.#options;
    await vmm.requireKept(live.vm.spec.machine, `capsule ${live.id}`);
    const scratch = paths.scratch(`save-${live.id}`);
    const checkpoint = join(paths.capsule(live.id), checkpointName);
    const quiesce = new Quiesce(live, purpose);
    verifier.forget(checkpoint);
    try {
      // Runs while the guest freezes and competes with it for CPU, so it does only what cannot be done earlier.
      await allSettledOrThrow([
        freshFolder(scratch),
        removeCheckpoint(paths.capsule(live.id)), // of a resume that was cut off; afterwards a checkpoint means a complete save
      ]);
      await this.#write(scratch, quiesce, saving);
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

  #reserve(scratch: string, { live, purpose, share }: Saving): Reservation {
    const { space } = this.#options;
    const { id, vm } = live;
    const written = () => writtenIn(scratch);
    if (purpose === "capture") return space.reserve(dirtyBytes(vm), `capturing capsule ${id}`, written);
    return space.reserveForPause({ id, share: share() }, dirtyBytes(vm), `pausing capsule ${id}`, written);
  }

  /** Waits for the agent, then for a slot, in which it writes the checkpoint into `scratch` and publishes it. */
  async #write(scratch: string, quiesce: Quiesce, saving: Saving): Promise<void> {
    const { paths, space, slots, step } = this.#options;
    const { live, owner, signal } = saving;
    await using save = live.vm.openSave({ state: join(scratch, fileNames.state), memory: join(scratch, diffName) });
    await allSettledOrThrow([save.prepare(), quiesce.answered()]);
    const inSlot = async (hasWaited: boolean) => {
      signal?.throwIfAborted();
      using room = await space.orReclaim(() => this.#reserve(scratch, saving));
      await quiesce.done(hasWaited);
      step("save.frozen");
      while (!(await this.#copy(scratch, quiesce.isFrozen, saving, save, room))) await save.prepare();
      room.keep();
      room[Symbol.dispose]();
      await publish(scratch, join(paths.capsule(live.id), checkpointName));
    };
    await slots.run(owner, inSlot, signal);
  }

  /**
   * The pause itself: work in one array runs concurrently. Everything in `scratch` is durable when it resolves, unless with false:
   * the devices have changed meanwhile, and it is to be repeated.
   */
  async #copy(
    scratch: string,
    frozen: boolean,
    { live, revision }: Saving,
    save: VmSave,
    room: Reservation,
  ): Promise<boolean> {
    const { paths, step } = this.#options;
    const layer = join(paths.capsule(live.id), diskName);
    await save.stopCpus();
    step("save.stopped");
    room.grow(dirtyBytes(live.vm)); // the guest has written until now
    const { memoryBytes } = await save.copyMemory();
    const written = save.finish().then(() => step("save.written"));
    const pending = { [diffName]: { bytes: memoryBytes, written } };
    const saved = { ...this.#about(live), kind: "pause", revision, frozen, diskLayer: diskLayerOf(layer) } as const;
    const listed = writeManifest(scratch, saved, [fileNames.state, diffName], { hashAll: false, pending });
    const synced = this.#syncDiskLayer(live.id);
    const [isConsistent] = await allSettledOrThrow([save.isConsistent(), written, listed, synced]);
    return isConsistent;
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
    const { paths, space, verifier, wakeMs } = this.#options;
    let isRunning = false;
    try {
      verifier.forget(join(paths.capsule(live.id), checkpointName));
      await removeCheckpoint(paths.capsule(live.id));
      space.forgetPause(live.id);
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

  /** In a slot of `copies`. The signal ends the waiting for it, and the copies. */
  capture(live: LiveGuest, storage: string, { owner, signal }: Turn): Promise<Captured> {
    return this.#options.copies.run(owner, () => this.#capture(live, storage, signal), signal);
  }

  async #capture(live: LiveGuest, storage: string, signal: AbortSignal | undefined): Promise<Captured> {
    const { paths, step } = this.#options;
    const target = paths.template(storage);
    const scratch = paths.scratch(`capture-${storage}`);
    try {
      await this.#merge(scratch, live, signal);
      step("capture.written");
      await publish(scratch, target);
      step("capture.published");
      return { sizeBytes: await allocatedBytes(target), canGrow: live.canGrow };
    } catch (error) {
      await rm(scratch, { recursive: true, force: true }).catch(() => {});
      signal?.throwIfAborted(); // some other copy may have failed first
      throw explainSpace(error, `capturing capsule ${live.id}`);
    }
  }

  /**
   * Makes a self-contained checkpoint of a saved guest: its memory merged with its parent's, its disk layer with its parent's.
   * However many generations came before, the result depends on the image alone.
   */
  async #merge(scratch: string, live: LiveGuest, signal: AbortSignal | undefined): Promise<void> {
    const { paths, space, templates, mergeLayer } = this.#options;
    const { image } = live.capsule;
    const [folder, parent] = [paths.capsule(live.id), join(paths.data, live.capsule.parent)];
    const checkpoint = join(folder, checkpointName);
    const needBytes = (await allocatedBytes(parent)) + (await allocatedBytes(folder)) + dirtyBytes(live.vm);
    const reserve = () => space.reserve(needBytes, `capturing capsule ${live.id}`, () => writtenIn(scratch));
    using _room = await space.orReclaim(reserve);
    await freshFolder(scratch);
    const mergeDisk = async () => {
      const layer = join(scratch, fileNames.disk);
      const { root } = templates.image(image);
      const merge = { layer, parent: join(parent, fileNames.disk), root, diskBytes: live.capsule.diskBytes };
      await copySparse(join(folder, diskName), layer, signal);
      await mergeLayer(merge, signal);
    };
    const memory = { base: join(parent, fileNames.memory), merged: join(scratch, fileNames.memory) };
    await allSettledOrThrow([
      copyFile(join(checkpoint, fileNames.state), join(scratch, fileNames.state)),
      flattenMemory(memory.base, join(checkpoint, diffName), memory.merged, signal),
      mergeDisk(),
    ]);
    const about = { kind: "template", revision: null, frozen: true, diskLayer: null } as const;
    await writeManifest(
      scratch,
      { ...this.#about(live), ...about },
      [fileNames.state, fileNames.memory, fileNames.disk],
      { hashAll: true, signal },
    );
  }
}
