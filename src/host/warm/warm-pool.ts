/**
 * The warm pool: capsules restored, warmed up and parked ahead of time. A create takes one, with its id, folder and VM; what
 * remains is to resume its CPUs and to wake its agent with the current time and new randomness.
 *
 *   making ──► ready ──reserve──► reserved ──claim──► the host's, a guest like any other
 *                └─ surplus, memory pressure, its template removed, shutdown: ended, folder removed
 *
 * A pooled capsule has a folder and a journal and no record in the database. After a crash it is a folder without a record,
 * and is removed like any of these.
 */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { dirtyBytes } from "../../vmm/memory/pagemap.ts";
import type { Pressure } from "../capacity/memory.ts";
import { withDeadline } from "../deadline.ts";
import { fileNames } from "../disk/checkpoint-folder.ts";
import type { Paths } from "../disk/paths.ts";
import type { LiveGuest } from "../guest.ts";
import { type Origin, type PoolState, type Shape, serviceOwner } from "../host.ts";
import type { TemplateStore } from "../images/template-store.ts";
import type { Launcher } from "../launch/launcher.ts";
import { createCapsuleFolder } from "../launch/new-capsule.ts";
import type { Step } from "../steps.ts";
import { warmUpAndPark, warmUpCommands } from "../warm-up.ts";
import { DemandPool } from "./demand-pool.ts";

/** Warm capsules of the same key are interchangeable. */
export interface WarmKey {
  origin: Origin;
  shape: Shape;
}

export interface WarmCapsule {
  id: string;
  /** Parked. */
  guest: LiveGuest;
  /** Folder of the checkpoint it was started from. */
  parentFolder: string;
  /** Memory that it takes from the host. */
  costBytes: number;
  /** Resolves when its VM has ended by itself. Never rejects. */
  ended: Promise<unknown>;
}

export interface WarmPoolSettings {
  /** Makes capsule ids. */
  newId: () => string;
  /** Limit of the memory of all ready capsules; 0: no pool. */
  budgetBytes: number;
  /** Kept regardless of demand, as far as half of the budget goes, but at least one. */
  minimum: { key: WarmKey; size: number };
  /** Called when a capsule could not be made, which is retried later, or not be unparked. */
  onFailure: (error: unknown) => void;
}

export interface WarmPoolOptions extends WarmPoolSettings {
  capsules: Pick<WarmCapsules, "make" | "end">;
  pressure: Pressure;
}

const expectedBytes = 64 << 20;

export class WarmPool {
  readonly #options: WarmPoolOptions;
  readonly #pool: DemandPool<WarmKey, WarmCapsule>;
  readonly #reserved = new Map<string, WarmCapsule>();
  /** Ids of capsules that are being made, ready, or being ended. */
  readonly #held = new Set<string>();

  constructor(options: WarmPoolOptions) {
    this.#options = options;
    const { pressure, budgetBytes, minimum, onFailure } = options;
    this.#pool = new DemandPool({
      nameOf,
      make: (key, signal) => this.#make(key, signal),
      end: (warm) => this.#end(warm),
      describe: ({ id }) => `the VM of capsule ${id}`,
      maxCount: Number.POSITIVE_INFINITY,
      expectedBytes,
      ...{ pressure, budgetBytes, minimum, onFailure },
    });
  }

  open(): void {
    this.#pool.open();
  }

  /** The id of a ready capsule, from now on the caller's: to be claimed or removed. Undefined when there is none. */
  reserve(key: WarmKey): string | undefined {
    const warm = this.#pool.claim(key);
    if (warm === undefined) return undefined;
    this.#held.delete(warm.id);
    this.#reserved.set(warm.id, warm);
    return warm.id;
  }

  /** The reserved capsule of this id, from now on the caller's. */
  claim(id: string): WarmCapsule | undefined {
    const warm = this.#reserved.get(id);
    this.#reserved.delete(id);
    return warm;
  }

  /** How many are reserved and not claimed yet. */
  get reserved(): number {
    return this.#reserved.size;
  }

  /** Whether a folder belongs to the pool, so that it needs no record. */
  holds(id: string): boolean {
    return this.#held.has(id);
  }

  state(): PoolState {
    return this.#pool.state();
  }

  /** Ends all capsules made from this template; resolves when none uses its files any more. */
  drop(storage: string): Promise<void> {
    return this.#pool.drop(({ origin }) => origin.kind === "template" && origin.storage === storage);
  }

  /** Ends the ready capsules of built-in images, which are made anew: QEMU was replaced. */
  renew(): Promise<void> {
    return this.#pool.renew(({ origin }) => origin.kind === "base");
  }

  /** Ends all capsules, also those that were reserved and not claimed. */
  async close(): Promise<void> {
    await this.#pool.close();
    await Promise.all([...this.#reserved.values()].map((warm) => this.#end(warm).catch(this.#options.onFailure)));
  }

  /** Resolves when as many are ready as should be, or as can be made now. */
  settled(): Promise<void> {
    return this.#pool.settled();
  }

  async #make(key: WarmKey, signal: AbortSignal): Promise<WarmCapsule> {
    const id = this.#options.newId();
    this.#held.add(id);
    try {
      return await this.#options.capsules.make(id, key, signal);
    } catch (error) {
      this.#held.delete(id);
      throw error;
    }
  }

  /** A folder that cannot be removed now has no record, so the reconciler removes it later. */
  async #end(warm: WarmCapsule): Promise<void> {
    this.#reserved.delete(warm.id);
    this.#held.add(warm.id);
    try {
      await this.#options.capsules.end(warm);
    } finally {
      this.#held.delete(warm.id);
    }
  }
}

function nameOf({ origin, shape }: WarmKey): string {
  const from = origin.kind === "base" ? `base ${origin.name}` : `template ${origin.storage}`;
  return `${from} ${shape.vcpus}x${shape.memoryMb}`;
}

export interface WarmCapsulesOptions {
  paths: Paths;
  templates: TemplateStore;
  launcher: Launcher;
  /** Deadline of the warm-up commands. */
  wakeMs: number;
  step: Step;
}

/** Makes and ends single warm capsules. */
export class WarmCapsules {
  readonly #options: WarmCapsulesOptions;

  constructor(options: WarmCapsulesOptions) {
    this.#options = options;
  }

  /** In the background, until `signal` fires. On failure nothing is left of it. */
  async make(id: string, { origin, shape }: WarmKey, signal: AbortSignal): Promise<WarmCapsule> {
    const { paths, templates, launcher, wakeMs, step } = this.#options;
    let guest: LiveGuest | undefined;
    try {
      using parent = await templates.find(origin, shape, { owner: serviceOwner, signal });
      const capsule = await createCapsuleFolder(paths, templates, id, parent);
      const saved = {
        state: join(parent.folder, fileNames.state),
        memory: null,
        protocol: parent.manifest.agent.protocol,
      };
      guest = await launcher.restoreInBackground(id, capsule, saved, signal);
      const warmUp = warmUpAndPark(guest, warmUpCommands.full);
      await withDeadline(wakeMs, `warming up capsule ${id}`, warmUp, signal);
      step("pool.ready");
      return { id, guest, parentFolder: parent.folder, costBytes: dirtyBytes(guest.vm), ended: guest.vm.ended };
    } catch (error) {
      await this.#remove(id, guest);
      throw error;
    }
  }

  /** Ends its VM and removes its folder. */
  end({ id, guest }: WarmCapsule): Promise<void> {
    return this.#remove(id, guest);
  }

  async #remove(id: string, guest: LiveGuest | undefined): Promise<void> {
    guest?.disconnect();
    await guest?.vm.kill();
    await rm(this.#options.paths.capsule(id), { recursive: true, force: true });
  }
}
