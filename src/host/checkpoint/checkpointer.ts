/** Freezing a guest into its checkpoint, taking that back, and making a template out of it. See host.ts for the promises. */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { allSettledOrThrow } from "../../vmm/all-settled.ts";
import type { MergeLayer } from "../../vmm/layer-merge.ts";
import { withDeadline } from "../deadline.ts";
import { type CapsuleFile, checkpointName, diskName, forgetCheckpoint } from "../disk/capsule-folder.ts";
import { diffName, fileNames, writeManifest } from "../disk/checkpoint-folder.ts";
import {
  allocatedBytes,
  explainSpace,
  freshFolder,
  publish,
  requireSpace,
  syncFile,
  syncFolder,
} from "../disk/files.ts";
import type { Paths } from "../disk/paths.ts";
import type { LiveGuest } from "../guest.ts";
import type { Captured } from "../host.ts";
import type { TemplateStore } from "../images/template-store.ts";
import type { Step } from "../steps.ts";
import { captureTemplate } from "./capture.ts";
import { dirtyBytes, Quiesce, resumeAfterStop, type SavePurpose } from "./quiesce.ts";
import type { Verifier } from "./verifier.ts";

export interface CheckpointerOptions {
  paths: Paths;
  sources: TemplateStore;
  verifier: Verifier;
  flatten: (base: string, diff: string, out: string) => Promise<void>;
  mergeLayer: MergeLayer;
  /** Deadline of an agent's answer to a thaw. */
  wakeMs: number;
  step: Step;
}

export class Checkpointer {
  readonly #options: CheckpointerOptions;

  constructor(options: CheckpointerOptions) {
    this.#options = options;
  }

  async save(live: LiveGuest, purpose: SavePurpose): Promise<void> {
    const scratch = this.#options.paths.scratch(`save-${live.id}`);
    const quiesce = new Quiesce(live, purpose);
    try {
      await this.#prepare(scratch, live);
      await this.#saveInto(scratch, live, quiesce);
    } catch (error) {
      quiesce.giveUp();
      if (quiesce.isServed) await this.unsave(live).catch(() => {});
      // Nobody waits for it: what hangs, or waits for the host's disk, hears of it when it goes on, behind the FREEZE.
      else live.thaw().catch(() => {});
      await rm(scratch, { recursive: true, force: true }).catch(() => {});
      throw explainSpace(error, `pausing capsule ${live.id}`);
    }
  }

  /**
   * All that is made ready while the guest freezes. It takes its time from the two who freeze it, so there is little of it:
   * what can be known is known.
   */
  async #prepare(scratch: string, live: LiveGuest): Promise<void> {
    const { data } = this.#options.paths;
    await allSettledOrThrow([
      requireSpace(data, dirtyBytes(live.vm), `pausing capsule ${live.id}`),
      freshFolder(scratch),
      this.forgetCheckpoint(live), // left behind where a release was cut off; from here on it means that this save has succeeded
    ]);
  }

  /** Takes the checkpoint away that may be in its folder, for good. */
  async forgetCheckpoint(live: LiveGuest): Promise<void> {
    if (!live.mayHaveCheckpoint) return;
    await forgetCheckpoint(this.#options.paths.capsule(live.id));
    live.mayHaveCheckpoint = false;
  }

  async #saveInto(scratch: string, live: LiveGuest, quiesce: Quiesce): Promise<void> {
    const { paths, step, verifier } = this.#options;
    const capsule = capsuleOf(live);
    const folder = paths.capsule(live.id);
    const checkpoint = join(folder, checkpointName);
    const about = { kind: "pause", machine: capsule.machine, image: capsule.image } as const;
    const files = { state: join(scratch, fileNames.state), memory: join(scratch, diffName) };
    await live.vm.save(files, {
      calm: () => quiesce.done().then(() => step("save.frozen")),
      stopped: () => step("save.stopped"),
      // QEMU flushes what it wrote; a layer that it never wrote to is ours to make durable, and so is the folder itself.
      meanwhile: () => allSettledOrThrow([syncFile(join(folder, diskName)), syncFolder(paths.capsules)]),
      seal: (memory) => {
        const whole = memory.whole.then(() => step("save.written"));
        const growing = { [diffName]: { bytes: memory.bytes, whole } };
        return writeManifest(scratch, about, [fileNames.state, diffName], { hashAll: false, growing });
      },
    });
    live.mayHaveCheckpoint = true;
    await publish(scratch, checkpoint);
    verifier.forget(checkpoint);
    verifier.hashLater(checkpoint);
    step("save.published");
  }

  async unsave(live: LiveGuest): Promise<void> {
    let isOn = false;
    try {
      await this.forgetCheckpoint(live);
      await live.vm.resume();
      isOn = true;
      await withDeadline(this.#options.wakeMs, `releasing capsule ${live.id}`, resumeAfterStop(live));
    } catch (error) {
      // A VM that waits for the host's disk hears the THAW when there is room again.
      if (!isOn || !(await live.isWaitingForDisk()))
        live.markLost("it could not be set running again after a failed pause");
      throw error;
    }
  }

  async capture(live: LiveGuest, storage: string): Promise<Captured> {
    const folder = this.#options.paths.capsule(live.id);
    const target = this.#options.paths.template(storage);
    const scratch = this.#options.paths.scratch(`capture-${storage}`);
    try {
      const capsule = capsuleOf(live);
      const origin = join(this.#options.paths.data, capsule.origin);
      const needBytes = (await allocatedBytes(origin)) + (await allocatedBytes(folder)) + dirtyBytes(live.vm);
      await requireSpace(this.#options.paths.data, needBytes, `capturing capsule ${live.id}`);
      await freshFolder(scratch);
      await captureTemplate({
        scratch,
        checkpoint: join(folder, checkpointName),
        disk: join(folder, diskName),
        origin,
        root: this.#options.sources.image(capsule.image).root,
        about: { kind: "template", machine: capsule.machine, image: capsule.image },
        flatten: this.#options.flatten,
        mergeLayer: this.#options.mergeLayer,
      });
      this.#options.step("capture.written");
      await publish(scratch, target);
      this.#options.step("capture.published");
      return { sizeBytes: await allocatedBytes(target) };
    } catch (error) {
      await rm(scratch, { recursive: true, force: true }).catch(() => {});
      throw explainSpace(error, `capturing capsule ${live.id}`);
    }
  }
}

function capsuleOf({ id, capsule }: LiveGuest): CapsuleFile {
  if (capsule === null) throw new Error(`guest ${id} is no capsule's`);
  return capsule;
}
