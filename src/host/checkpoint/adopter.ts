/** Takes over what an earlier daemon left of a running capsule: its VM, or the checkpoint of a pause that it did not record. */
import { join } from "node:path";
import { messageOf } from "../../wire/errors.ts";
import { checkpointName, readCapsule, readVm, type VmFile } from "../disk/capsule-folder.ts";
import { openCheckpoint } from "../disk/checkpoint-folder.ts";
import { canBeResumed } from "../disk/disk-layer.ts";
import type { Paths } from "../disk/paths.ts";
import { type Reaper, reapFolder } from "../disk/reaper.ts";
import type { LiveGuest } from "../guest.ts";
import type { Adopted } from "../host.ts";
import type { Launcher } from "../launch/launcher.ts";
import type { Restorer } from "./restorer.ts";

export interface AdopterOptions {
  paths: Paths;
  vmm: Reaper;
  launcher: Pick<Launcher, "adopt">;
  restorer: Pick<Restorer, "undo">;
}

export type AdoptedGuest = Exclude<Adopted, { kind: "running" }> | { kind: "running"; guest: LiveGuest };

export class Adopter {
  readonly #options: AdopterOptions;

  constructor(options: AdopterOptions) {
    this.#options = options;
  }

  /**
   * `saving`: as for `Host.adopt`. A VM that cannot be taken over is ended, and a restore that it came from is undone. A disk
   * layer that user processes may have changed since the save ends the checkpoint.
   */
  async adopt(id: string, saving: number | null): Promise<AdoptedGuest> {
    const folder = this.#options.paths.capsule(id);
    const checkpoint = join(folder, checkpointName);
    const [vm, saved] = await Promise.all([readVm(folder), openCheckpoint(checkpoint).catch(() => undefined)]);
    const isOwn = saved !== undefined && saving !== null && saved.revision === saving;
    let reason: string | undefined;
    if (vm !== undefined) {
      try {
        const adopted = await this.#connect(id, vm, isOwn ? saving : null);
        if (adopted !== undefined) return adopted;
      } catch (error) {
        reason = messageOf(error);
      }
      await this.#end(id, isOwn);
    }
    if (saved === undefined) return { kind: "nothing", reason };
    if (isOwn && !(await canBeResumed(folder))) {
      return { kind: "nothing", reason: reason ?? "its disk was written to after its memory was saved" };
    }
    return { kind: "checkpoint", revision: saved.revision, savedAt: Date.parse(saved.createdAt), reason };
  }

  /** Undefined when there is no VM. */
  async #connect(id: string, vm: VmFile, checkpoint: number | null): Promise<AdoptedGuest | undefined> {
    const { paths, vmm, launcher } = this.#options;
    const capsule = await readCapsule(paths.capsule(id));
    const process = vm.process ?? (await vmm.find(vm.nonce))[0];
    if (capsule === undefined || process === undefined) return undefined;
    const guest = await launcher.adopt(id, capsule, { ...vm, process }, checkpoint);
    return guest === undefined ? { kind: "powered_off" } : { kind: "running", guest };
  }

  /** When a full disk keeps the restore from being undone, the journal stays and the next resume undoes it. */
  async #end(id: string, isOwn: boolean): Promise<void> {
    const { paths, vmm, restorer } = this.#options;
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
  }
}
