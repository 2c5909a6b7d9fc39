/** One capsule made before anybody asked for it: restored, woken, exercised, and then stopped. */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { dirtyBytes } from "../checkpoint/quiesce.ts";
import { unless, within } from "../deadline.ts";
import { parts } from "../disk/checkpoint-folder.ts";
import type { Paths } from "../disk/paths.ts";
import type { LiveGuest } from "../guest.ts";
import type { Origin, Shape } from "../host.ts";
import { found } from "../images/new-capsule.ts";
import type { Sources } from "../images/template-store.ts";
import type { Waker } from "../launch/launcher.ts";
import type { Step } from "../steps.ts";
import { exerciseToRest, usualSteps } from "./warm-up.ts";

/** Something of which every one is as good as another. */
export interface Kind {
  origin: Origin;
  shape: Shape;
}

export interface Standby {
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

export class Standbys {
  readonly #paths: Paths;
  readonly #sources: Sources;
  readonly #waker: Waker;
  readonly #exerciseMs: number;
  readonly #step: Step;

  /** `exerciseMs`: longest exercise of one guest. */
  constructor(paths: Paths, sources: Sources, waker: Waker, exerciseMs: number, step: Step) {
    this.#paths = paths;
    this.#sources = sources;
    this.#waker = waker;
    this.#exerciseMs = exerciseMs;
    this.#step = step;
  }

  /** Makes one, whenever nothing urgent is being started and until it is unwanted. On failure nothing is left of it. */
  async make(id: string, { origin, shape }: Kind, unwanted: AbortSignal): Promise<Standby> {
    let guest: LiveGuest | undefined;
    try {
      const source = await this.#sources.find(origin, shape);
      const capsule = await found(this.#paths, this.#sources, id, source);
      const saved = { state: join(source.folder, parts.state), memory: null };
      guest = await this.#waker.wake(id, capsule, saved, { urgency: "later", unwanted });
      const exercised = unless(unwanted, exerciseToRest(guest, usualSteps));
      await within(this.#exerciseMs, `exercising capsule ${id}`, exercised);
      this.#step("pool.ready");
      return { id, guest, source: source.folder, costBytes: dirtyBytes(guest.vm), ended: guest.vm.ended };
    } catch (error) {
      await this.#end(id, guest);
      throw error;
    }
  }

  /** Ends it and removes its folder. */
  end({ id, guest }: Standby): Promise<void> {
    return this.#end(id, guest);
  }

  async #end(id: string, guest: LiveGuest | undefined): Promise<void> {
    guest?.hangUp();
    await guest?.vm.kill();
    await rm(this.#paths.capsule(id), { recursive: true, force: true });
  }
}
