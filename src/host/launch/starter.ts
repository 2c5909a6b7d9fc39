/** Starts a capsule anew from its template, whose files stay as they are. */
import { join } from "node:path";
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
    const capsule = await createCapsuleFolder(paths, templates, id, parent);
    step("start.journalled");
    const { protocol } = manifest.agent;
    return launcher.restore(id, capsule, { state: join(folder, fileNames.state), memory: null, protocol }, turn);
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
