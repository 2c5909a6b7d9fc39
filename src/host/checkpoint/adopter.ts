/** Takes over what an earlier daemon left of a running capsule: its VM, or the checkpoint of a pause that it did not record. */
import { join } from "node:path";
import { messageOf } from "../../wire/errors.ts";
import { checkpointName, readCapsule, readVm, type VmFile } from "../disk/capsule-folder.ts";
import { openCheckpoint } from "../disk/checkpoint-folder.ts";
import { canBeResumed } from "../disk/disk-layer.ts";
import type { Manifest } from "../disk/manifest.ts";
import type { Paths } from "../disk/paths.ts";
import { type Reaper, reapFolder } from "../disk/reaper.ts";
import type { LiveGuest } from "../guest.ts";
import type { Adopted, AliveVm } from "../host.ts";
import { Halted, type HaltKind } from "../launch/halted.ts";
import type { Launcher } from "../launch/launcher.ts";
import type { Restorer } from "./restorer.ts";

export interface AdopterOptions {
  paths: Paths;
  vmm: Reaper;
  launcher: Pick<Launcher, "adopt">;
  restorer: Pick<Restorer, "undo">;
  /** Called with a guest before it is handed on. */
  onReached: (guest: LiveGuest) => void;
}

interface Reached {
  reached: Promise<LiveGuest>;
}

/** The files of a capsule that an earlier daemon ran. */
interface Left {
  id: string;
  saved: Manifest | undefined;
  /** The checkpoint is of the save under way. */
  isOwn: boolean;
}

export class Adopter {
  readonly #options: AdopterOptions;

  constructor(options: AdopterOptions) {
    this.#options = options;
  }

  /**
   * `saving` and `signal`: as for `Host.adopt`. A VM that cannot be taken over is ended, and a restore that it came from is undone. A
   * disk layer that user processes may have changed since the save ends the checkpoint.
   */
  async adopt(id: string, saving: number | null, signal: AbortSignal): Promise<Adopted | AliveVm> {
    const folder = this.#options.paths.capsule(id);
    const checkpoint = join(folder, checkpointName);
    const [vm, saved] = await Promise.all([readVm(folder), openCheckpoint(checkpoint).catch(() => undefined)]);
    const left = { id, saved, isOwn: saved !== undefined && saving !== null && saved.revision === saving };
    if (vm === undefined) return this.#settle(left, undefined);
    try {
      const found = await this.#connect(id, vm, left.isOwn ? saving : null, signal);
      if (found === "powered_off" || found === "reset") return { kind: found };
      if (found !== "no VM") return { kind: "alive", settled: this.#reach(left, found, signal) };
    } catch (error) {
      return this.#end(left, messageOf(error));
    }
    return this.#end(left, undefined);
  }

  async #reach(left: Left, { reached }: Reached, signal: AbortSignal): Promise<Adopted> {
    try {
      const guest = await reached;
      this.#options.onReached(guest);
      return { kind: "running", guest };
    } catch (error) {
      if (signal.aborted) throw error;
      const settled = await this.#end(left, messageOf(error));
      return error instanceof Halted && !left.isOwn ? { kind: error.kind } : settled;
    }
  }

  /** The checkpoint, if any, of a capsule without a VM. `reason`: why that was ended. */
  async #settle({ id, saved, isOwn }: Left, reason: string | undefined): Promise<Adopted> {
    if (saved === undefined) return { kind: "nothing", reason };
    if (isOwn && !(await canBeResumed(this.#options.paths.capsule(id)))) {
      return { kind: "nothing", reason: reason ?? "its disk was written to after its memory was saved" };
    }
    return { kind: "checkpoint", revision: saved.revision, savedAt: Date.parse(saved.createdAt), reason };
  }

  async #connect(
    id: string,
    vm: VmFile,
    checkpoint: number | null,
    signal: AbortSignal,
  ): Promise<Reached | HaltKind | "no VM"> {
    const { paths, vmm, launcher } = this.#options;
    const capsule = await readCapsule(paths.capsule(id));
    const process = vm.process ?? (await vmm.find(vm.nonce))[0];
    if (capsule === undefined || process === undefined) return "no VM";
    return launcher.adopt(id, capsule, { ...vm, process }, { checkpoint, signal });
  }

  /** Ends the VM. When a full disk keeps the restore from being undone, the journal stays and the next resume undoes it. */
  async #end(left: Left, reason: string | undefined): Promise<Adopted> {
    const { paths, vmm, restorer } = this.#options;
    const { id, isOwn } = left;
    let failure: unknown;
    const undo = async () => {
      if (!isOwn) return;
      await restorer.undo(id).catch((error: unknown) => {
        failure = error;
        throw error;
      });
    };
    await reapFolder(vmm, paths.capsule(id), undo).catch((error: unknown) => {
      if (failure === undefined) throw error;
    });
    return this.#settle(left, reason);
  }
}
