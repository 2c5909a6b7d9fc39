/**
 * Boots capsules from their own disk layer: the newest kernel of their image, on the newest machine, with nothing of their memory. The VM maps its parent's memory
 * file as after any other start, so that it is saved and restored as any other; a kernel takes whatever is in memory for garbage, as
 * after a warm reset. The disk is the guest's, and nothing here reads it.
 */
import { existsSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { CapsuleError } from "../../wire/errors.ts";
import { FairSlots } from "../capacity/fair-slots.ts";
import {
  type CapsuleFile,
  diskName,
  markStopped,
  readCapsule,
  unmarkStopped,
  writeCapsule,
} from "../disk/capsule-folder.ts";
import { dropAside } from "../disk/disk-layer.ts";
import { explainSpace } from "../disk/files.ts";
import type { Paths } from "../disk/paths.ts";
import { type Reaper, reapFolder } from "../disk/reaper.ts";
import type { LiveGuest } from "../guest.ts";
import type { Turn } from "../host.ts";
import type { TemplateStore } from "../images/template-store.ts";
import { Halted } from "./halted.ts";
import type { Launcher } from "./launcher.ts";
import type { Verification } from "./starter.ts";

export interface BooterOptions {
  paths: Paths;
  vmm: Reaper;
  templates: Pick<TemplateStore, "renewed" | "requireParent" | "image">;
  verifier: Verification;
  launcher: Pick<Launcher, "boot">;
  /** Deadline of a boot, kernel to agent. */
  bootMs: number;
}

/**
 * A boot takes seconds of a whole core, so boots have slots of their own, which go to the owners in turn: neither a create nor another
 * team's boot waits behind a team whose guests reboot all the time.
 */
export function lineOfBoots(): FairSlots {
  return new FairSlots(availableParallelism() > 4 ? 2 : 1, { perOwner: 1 });
}

/** Part of a boot's deadline after which a guest that has said nothing is booted anew: by default 30 s, where a boot takes 2 to 4 s. */
const firstBootShare = 1 / 4;

function isSilence(error: unknown): boolean {
  return error instanceof CapsuleError && error.code === "agent_error" && !(error instanceof Halted);
}

export class Booter {
  readonly #options: BooterOptions;
  readonly #line = lineOfBoots();

  constructor(options: BooterOptions) {
    this.#options = options;
  }

  /** Throws CapsuleError: "invalid_state" without a disk layer, "conflict" without what it stands on. */
  async requireDisk(id: string): Promise<void> {
    await this.#open(id);
  }

  /** The capsule's VM, held. On failure it is gone. */
  async boot(id: string, turn: Turn): Promise<LiveGuest> {
    const { verifier, paths, templates } = this.#options;
    await this.reap(id);
    const found = await this.#open(id);
    verifier.requireSound(join(paths.data, found.parent));
    const wasStopped = await unmarkStopped(paths.capsule(id));
    try {
      const capsule = await templates.renewed(found);
      if (capsule !== found) await writeCapsule(paths.capsule(id), capsule);
      return await this.#bootUntilAnswered(id, capsule, turn);
    } catch (error) {
      await this.reap(id).catch(() => {}); // the next boot repeats it
      if (wasStopped) await markStopped(paths.capsule(id)).catch(() => {}); // it may be destroyed
      throw explainSpace(error, `starting capsule ${id}`);
    }
  }

  /**
   * A second time when the first guest said nothing: a guest was seen to hang in its boot, under emulation on a busy machine. No program
   * of the user runs before the agent has answered.
   */
  async #bootUntilAnswered(id: string, capsule: CapsuleFile, { admitted, ...turn }: Turn): Promise<LiveGuest> {
    const { launcher } = this.#options;
    const options = { ...turn, line: this.#line };
    try {
      const first = { ...options, deadlineMs: this.#options.bootMs * firstBootShare, ...(admitted && { admitted }) };
      return await launcher.boot(id, capsule, first);
    } catch (error) {
      if (!isSilence(error) || turn.signal?.aborted) throw error;
      await this.reap(id);
      return await launcher.boot(id, capsule, options);
    }
  }

  /** Ends the VM, if any. The layer that is in use is the newest one: a run never goes back to an older one. */
  async reap(id: string): Promise<void> {
    const { paths, vmm } = this.#options;
    const folder = paths.capsule(id);
    if (!existsSync(folder)) return;
    await reapFolder(vmm, folder);
    await dropAside(folder);
  }

  async #open(id: string): Promise<CapsuleFile> {
    const { paths, templates } = this.#options;
    const [what, folder] = [`capsule ${id}`, paths.capsule(id)];
    const capsule = await readCapsule(folder);
    if (capsule === undefined || !existsSync(join(folder, diskName))) {
      throw new CapsuleError("invalid_state", `cannot start ${what}: it has no disk`);
    }
    await templates.requireParent(capsule, what);
    templates.image(capsule.image);
    return capsule;
  }
}
