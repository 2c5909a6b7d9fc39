/** One capsule made before anybody asked for it: restored, woken, exercised, and then stopped. */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { dirtyBytes } from "../checkpoint/quiesce.ts";
import { unlessAborted, withDeadline } from "../deadline.ts";
import { fileNames } from "../disk/checkpoint-folder.ts";
import type { Paths } from "../disk/paths.ts";
import type { LiveGuest } from "../guest.ts";
import type { Origin, Shape } from "../host.ts";
import { createCapsuleFolder } from "../images/new-capsule.ts";
import type { TemplateStore } from "../images/template-store.ts";
import type { Launcher } from "../launch/launcher.ts";
import type { Step } from "../steps.ts";
import { fullWarmUp, warmUpAndPark } from "./warm-up.ts";

/** Something of which every one is as good as another. */
export interface WarmKey {
  origin: Origin;
  shape: Shape;
}

export interface WarmCapsule {
  id: string;
  /** At rest. */
  guest: LiveGuest;
  /** Folder of the checkpoint it was started from. */
  source: string;
  /** Memory that it takes from the host. */
  costBytes: number;
  /** Resolves when its VM has ended by itself. Never rejects. */
  ended: Promise<unknown>;
}

export class WarmCapsules {
  readonly #paths: Paths;
  readonly #sources: TemplateStore;
  readonly #waker: Launcher;
  readonly #exerciseMs: number;
  readonly #step: Step;

  /** `exerciseMs`: longest exercise of one guest. */
  constructor(paths: Paths, sources: TemplateStore, waker: Launcher, exerciseMs: number, step: Step) {
    this.#paths = paths;
    this.#sources = sources;
    this.#waker = waker;
    this.#exerciseMs = exerciseMs;
    this.#step = step;
  }

  /** Makes one, whenever nothing urgent is being started and until it is unwanted. On failure nothing is left of it. */
  async make(id: string, { origin, shape }: WarmKey, signal: AbortSignal): Promise<WarmCapsule> {
    let guest: LiveGuest | undefined;
    try {
      const source = await this.#sources.find(origin, shape);
      const capsule = await createCapsuleFolder(this.#paths, this.#sources, id, source);
      const saved = { state: join(source.folder, fileNames.state), memory: null };
      guest = await this.#waker.restore(id, capsule, saved, { urgency: "later", signal });
      const exercised = unlessAborted(signal, warmUpAndPark(guest, fullWarmUp));
      await withDeadline(this.#exerciseMs, `exercising capsule ${id}`, exercised);
      this.#step("pool.ready");
      return { id, guest, source: source.folder, costBytes: dirtyBytes(guest.vm), ended: guest.vm.ended };
    } catch (error) {
      await this.#end(id, guest);
      throw error;
    }
  }

  /** Ends it and removes its folder. */
  end({ id, guest }: WarmCapsule): Promise<void> {
    return this.#end(id, guest);
  }

  async #end(id: string, guest: LiveGuest | undefined): Promise<void> {
    guest?.disconnect();
    await guest?.vm.kill();
    await rm(this.#paths.capsule(id), { recursive: true, force: true });
  }
}
