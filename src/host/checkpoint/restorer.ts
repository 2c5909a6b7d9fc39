/** Restores paused capsules: checks that checkpoint, machine, parent and disk layer belong together, then starts the VM. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { CapsuleError } from "../../wire/errors.ts";
import { FairSlots } from "../capacity/fair-slots.ts";
import { checkpointName, readCapsule, vmName } from "../disk/capsule-folder.ts";
import { diffName, fileNames, openCheckpoint } from "../disk/checkpoint-folder.ts";
import { putLayerBack, requireSameLayer, setLayerAside, undoResume } from "../disk/disk-layer.ts";
import type { DiskSpace } from "../disk/disk-space.ts";
import { explainSpace } from "../disk/files.ts";
import { readHashes } from "../disk/hashes.ts";
import type { Paths } from "../disk/paths.ts";
import { type Reaper, reapFolder } from "../disk/reaper.ts";
import type { LiveGuest } from "../guest.ts";
import type { Turn } from "../host.ts";
import type { TemplateStore } from "../images/template-store.ts";
import type { Launcher } from "../launch/launcher.ts";
import type { Verifier } from "./verifier.ts";

/** Resumes of one owner that have a copy of a disk layer, which counts for the owner's quota only when it is measured. */
export const copiedPerOwner = 2;

export interface RestorerOptions {
  paths: Paths;
  space: DiskSpace;
  /** For copies of disk layers. */
  copies: Pick<FairSlots, "run">;
  vmm: Reaper;
  templates: Pick<TemplateStore, "requireMachine" | "requireParent">;
  verifier: Pick<Verifier, "requireSound" | "verifyOnce">;
  launcher: Pick<Launcher, "restore">;
}

export class Restorer {
  readonly #options: RestorerOptions;
  readonly #copied = new FairSlots(Number.POSITIVE_INFINITY, { perOwner: copiedPerOwner });

  constructor(options: RestorerOptions) {
    this.#options = options;
  }

  /** The capsule's VM, held. On failure the capsule is as before. */
  async restore(id: string, turn: Turn): Promise<LiveGuest> {
    const { paths, space, copies, templates, verifier, launcher } = this.#options;
    const [what, folder] = [`capsule ${id}`, paths.capsule(id)];
    const checkpoint = join(folder, checkpointName);
    verifier.requireSound(checkpoint);
    await this.reap(id); // a resume was cut off, or could not be undone
    const [capsule, manifest] = await Promise.all([readCapsule(folder), openCheckpoint(checkpoint)]);
    if (capsule === undefined || manifest === undefined) {
      throw new CapsuleError("internal_error", `${what} has no checkpoint to resume from`);
    }
    await templates.requireMachine(manifest, what);
    await templates.requireParent(capsule, what);
    requireSameLayer(folder, manifest, what);
    const parent = join(paths.data, capsule.parent);
    verifier.requireSound(parent);
    verifier.verifyOnce(parent);
    const pieces = (await readHashes(checkpoint))?.[diffName];
    const files = { state: join(checkpoint, fileNames.state), memory: join(checkpoint, diffName), pieces };
    const saved = { ...files, protocol: manifest.agent.protocol, revision: manifest.revision };
    const { owner, signal } = turn;
    const load = async (prepare?: () => Promise<void>) => {
      try {
        await prepare?.();
        return await launcher.restore(id, capsule, saved, turn);
      } catch (error) {
        await this.reap(id).catch(() => {}); // the next resume or start repeats it
        throw explainSpace(error, `resuming ${what}`);
      }
    };
    if (manifest.frozen !== false) return load();
    const copy = () => copies.run(owner, () => setLayerAside(folder, space, `resuming ${what}`, signal), signal);
    return this.#copied.run(owner, () => load(copy), signal);
  }

  /** Ends the VM, if any, of a paused capsule, and undoes what it has done to the disk layer. */
  async reap(id: string): Promise<void> {
    const { paths, vmm } = this.#options;
    const folder = paths.capsule(id);
    if (existsSync(join(folder, vmName))) await reapFolder(vmm, folder, () => this.undo(id));
    else await putLayerBack(folder);
  }

  /** Undoes what a restored VM has done to its disk layer. Call when it has ended without having been released. */
  undo(id: string): Promise<void> {
    const { paths } = this.#options;
    return undoResume(paths.capsule(id), paths.scratch(`undone-${id}`));
  }
}
