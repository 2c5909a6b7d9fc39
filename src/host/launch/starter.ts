/** Starts a capsule anew from its template, whose files stay as they are. */
import { join } from "node:path";
import { diskBytesOf } from "../../vmm/qcow2.ts";
import { withDeadline } from "../deadline.ts";
import { fileNames } from "../disk/checkpoint-folder.ts";
import type { Paths } from "../disk/paths.ts";
import type { LiveGuest } from "../guest.ts";
import type { Origin, Shape, Turn } from "../host.ts";
import type { TemplateStore } from "../images/template-store.ts";
import type { Step } from "../steps.ts";
import type { Launcher } from "./launcher.ts";
import { createCapsuleFolder } from "./new-capsule.ts";

/** Whether a template's files are damaged: by what was found before, and by one look at them in the background. */
export interface Verification {
  requireSound(folder: string): void;
  verifyOnce(folder: string): void;
}

export interface StarterOptions {
  paths: Paths;
  templates: TemplateStore;
  verifier: Verification;
  launcher: Launcher;
  /** Deadline of the growth of a disk. */
  wakeMs: number;
  step: Step;
}

export interface Parked {
  guest: LiveGuest;
  /** Folder of the base or template that it was started from. */
  parentFolder: string;
}

export class Starter {
  readonly #options: StarterOptions;

  constructor(options: StarterOptions) {
    this.#options = options;
  }

  /** The new capsule's VM, held. After a failure its folder may be there. */
  async start(id: string, origin: Origin, shape: Shape, turn: Turn): Promise<LiveGuest> {
    const { paths, templates, verifier, launcher, step } = this.#options;
    turn.signal?.throwIfAborted();
    using parent = await templates.find(origin, shape, turn);
    const { folder, manifest } = parent;
    verifier.requireSound(folder);
    verifier.verifyOnce(folder);
    const capsule = await createCapsuleFolder(paths, templates, id, parent, shape.diskMb);
    step("start.journalled");
    const { protocol } = manifest.agent;
    const saved = { state: join(folder, fileNames.state), memory: null, protocol };
    const guest = await launcher.restore(id, capsule, saved, turn);
    const isLarger = (capsule.diskBytes ?? 0) > diskBytesOf(join(folder, fileNames.disk));
    if (isLarger) await this.#grow(guest, capsule.diskBytes!, turn.signal);
    return guest;
  }

  /** The guest's disk, and its file system, get this size. After a failure the VM has ended. */
  async #grow(guest: LiveGuest, diskBytes: number, signal: AbortSignal | undefined): Promise<void> {
    try {
      await guest.vm.growDisk(diskBytes);
      const grown = guest.agent.grow(diskBytes);
      await withDeadline(this.#options.wakeMs, `growing the disk of capsule ${guest.id}`, grown, signal);
    } catch (error) {
      guest.disconnect();
      await guest.vm.kill();
      throw error;
    }
  }

  /** The VM of a capsule that was made ahead of time, held. After a failure the VM has ended, and its folder is there. */
  async unpark({ guest, parentFolder }: Parked, signal?: AbortSignal): Promise<LiveGuest> {
    const { verifier, launcher } = this.#options;
    try {
      verifier.requireSound(parentFolder);
      verifier.verifyOnce(parentFolder);
      await launcher.unpark(guest, signal);
      return guest;
    } catch (error) {
      guest.disconnect();
      await guest.vm.kill();
      throw error;
    }
  }
}
