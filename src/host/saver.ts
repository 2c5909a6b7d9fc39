/** Freezing a guest into its checkpoint, taking that back, and making a template out of it. See host.ts for the promises. */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { MergeLayer } from "../vmm/layer-merge.ts";
import { allOf } from "../vmm/outcomes.ts";
import { CapsuleError } from "../wire/errors.ts";
import { captureTemplate } from "./capture.ts";
import { diffName, parts, seal } from "./checkpoints.ts";
import { within } from "./deadline.ts";
import {
  allocatedBytes,
  exists,
  explainSpace,
  freshFolder,
  publish,
  requireSpace,
  syncFile,
  syncFolder,
} from "./files.ts";
import type { LiveGuest } from "./guest.ts";
import type { Captured } from "./host.ts";
import { type CapsuleFile, checkpointName, diskName, readCapsule } from "./journal.ts";
import type { Paths } from "./paths.ts";
import type { Sources } from "./sources.ts";
import type { Step } from "./steps.ts";
import { dirtyBytes, freeze, goOn, requireRunning } from "./stillness.ts";
import type { Verifier } from "./verifier.ts";

export interface SaverOptions {
  paths: Paths;
  sources: Sources;
  verifier: Verifier;
  flatten: (base: string, diff: string, out: string) => Promise<void>;
  mergeLayer: MergeLayer;
  /** Deadline of an agent's answer to a thaw. */
  wakeMs: number;
  step: Step;
}

/** How often a guest is asked to freeze before its capture is given up; each time it tries for a third of a second. */
const captureAttempts = 10;

export class Saver {
  readonly #o: SaverOptions;

  constructor(options: SaverOptions) {
    this.#o = options;
  }

  async save(live: LiveGuest, purpose: "pause" | "capture"): Promise<void> {
    const scratch = this.#o.paths.scratch(`save-${live.id}`);
    const failed = new AbortController();
    try {
      const { reconnects } = live;
      const frozen = this.#freeze(live, purpose, failed.signal);
      const prepared = this.#prepare(scratch, live).then((capsule) => {
        if (purpose === "capture" && live.reconnects !== reconnects) throw notFrozen(live.id);
        live.expectSilence(); // from here on no new connection thaws it
        return capsule;
      });
      const capsule = await prepared.catch((error: unknown) => {
        failed.abort();
        // Nobody waits for it: what hangs, or waits for the host's disk, hears of it when it goes on, behind the FREEZE.
        live.thaw().catch(() => {});
        throw error;
      });
      await this.#saveInto(scratch, live, capsule, frozen).catch(async (error: unknown) => {
        failed.abort();
        await this.unsave(live).catch(() => {});
        throw error;
      });
    } catch (error) {
      await rm(scratch, { recursive: true, force: true }).catch(() => {});
      throw explainSpace(error, `pausing capsule ${live.id}`);
    }
  }

  /** A guest that does not freeze can be paused all the same; captured it cannot be, and is asked more often. */
  #freeze(live: LiveGuest, purpose: "pause" | "capture", unwanted: AbortSignal): Promise<void> {
    const isNeeded = purpose === "capture";
    const frozen = freeze(live, isNeeded ? captureAttempts : 1, unwanted).then((isFrozen) => {
      if (isNeeded && !isFrozen) throw notFrozen(live.id);
    });
    frozen.catch(() => {}); // seen by the save, or no longer of interest
    return frozen;
  }

  /**
   * All that is found out and made ready while the guest freezes. What is only read is read while QEMU answers, which takes a
   * while; nothing is made, and no disk that hangs is waited for, before it has.
   */
  async #prepare(scratch: string, live: LiveGuest): Promise<CapsuleFile> {
    const { paths } = this.#o;
    const running = requireRunning(live);
    const checkpoint = join(paths.capsule(live.id), checkpointName);
    const [capsule, isLeft] = await Promise.all([
      this.#capsuleOf(live.id),
      exists(checkpoint),
      requireSpace(paths.data, dirtyBytes(live.vm), `pausing capsule ${live.id}`),
      running,
    ]);
    // Left behind where a release was cut off; from here on a checkpoint means that this save has succeeded.
    const gone = isLeft ? rm(checkpoint, { recursive: true, force: true }) : undefined;
    await allOf([freshFolder(scratch), gone]);
    return capsule;
  }

  async #saveInto(scratch: string, live: LiveGuest, capsule: CapsuleFile, frozen: Promise<void>): Promise<void> {
    const { paths, step, verifier } = this.#o;
    const folder = paths.capsule(live.id);
    const checkpoint = join(folder, checkpointName);
    const about = { kind: "pause", machine: capsule.machine, image: capsule.image } as const;
    const files = { state: join(scratch, parts.state), memory: join(scratch, diffName) };
    await live.vm.save(files, {
      calm: () => frozen.then(() => step("save.frozen")),
      stopped: () => step("save.stopped"),
      // QEMU flushes what it wrote; a layer that it never wrote to is ours to make durable, and so is the folder itself.
      meanwhile: () => allOf([syncFile(join(folder, diskName)), syncFolder(paths.capsules)]),
      seal: (memory) => {
        const whole = memory.whole.then(() => step("save.written"));
        const growing = { [diffName]: { bytes: memory.bytes, whole } };
        return seal(scratch, about, [parts.state, diffName], { hashAll: false, growing });
      },
    });
    await publish(scratch, checkpoint);
    verifier.forget(checkpoint);
    verifier.hashLater(checkpoint);
    step("save.published");
  }

  async unsave(live: LiveGuest): Promise<void> {
    try {
      await rm(join(this.#o.paths.capsule(live.id), checkpointName), { recursive: true, force: true });
      await live.vm.resume();
      await within(this.#o.wakeMs, `releasing capsule ${live.id}`, goOn(live));
    } catch (error) {
      // A VM that waits for the host's disk hears the THAW when there is room again.
      if (!(await live.isWaitingForDisk())) live.lose("it could not be set running again after a failed pause");
      throw error;
    }
  }

  async capture(live: LiveGuest, storage: string): Promise<Captured> {
    const folder = this.#o.paths.capsule(live.id);
    const target = this.#o.paths.template(storage);
    const scratch = this.#o.paths.scratch(`capture-${storage}`);
    try {
      const capsule = await this.#capsuleOf(live.id);
      const origin = join(this.#o.paths.data, capsule.origin);
      const needBytes = (await allocatedBytes(origin)) + (await allocatedBytes(folder)) + dirtyBytes(live.vm);
      await requireSpace(this.#o.paths.data, needBytes, `capturing capsule ${live.id}`);
      await freshFolder(scratch);
      await captureTemplate({
        scratch,
        checkpoint: join(folder, checkpointName),
        disk: join(folder, diskName),
        origin,
        root: this.#o.sources.image(capsule.image).root,
        about: { kind: "template", machine: capsule.machine, image: capsule.image },
        flatten: this.#o.flatten,
        mergeLayer: this.#o.mergeLayer,
      });
      this.#o.step("capture.written");
      await publish(scratch, target);
      this.#o.step("capture.published");
      return { sizeBytes: await allocatedBytes(target) };
    } catch (error) {
      await rm(scratch, { recursive: true, force: true }).catch(() => {});
      throw explainSpace(error, `capturing capsule ${live.id}`);
    }
  }

  async #capsuleOf(id: string): Promise<CapsuleFile> {
    const capsule = await readCapsule(this.#o.paths.capsule(id));
    if (capsule === undefined) throw new CapsuleError("internal_error", `the folder of capsule ${id} is gone`);
    return capsule;
  }
}

function notFrozen(id: string): CapsuleError {
  return new CapsuleError("agent_error", `the processes of capsule ${id} could not be frozen`);
}
