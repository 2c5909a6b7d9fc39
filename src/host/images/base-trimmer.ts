/**
 * Removes bases that no capsule needs: all of them when the image or QEMU has a newer build, else those beyond the spare ones. A
 * base is in use from before its files are opened until the folder of the capsule that starts from it is written.
 */
import { stat } from "node:fs/promises";
import { Counts } from "../../counts.ts";
import type { Paths } from "../disk/paths.ts";
import { mayBeNeeded, type References } from "../disk/references.ts";
import { serviceOwner } from "../host.ts";

export interface BaseTrimmerOptions {
  paths: Pick<Paths, "data" | "base" | "baseNames" | "discard">;
  /** How many bases are kept that no capsule needs. */
  spare: number;
  /** False for a base of another build of the image or QEMU. */
  isCurrent: (name: string) => boolean;
  /** Everything that stands on a base. */
  references: () => Promise<Pick<References, "needed" | "damaged">>;
  /** Awaited before a base is removed; when it rejects, the base stays. */
  onRemove: (folder: string) => Promise<void>;
}

export interface UnusedBase {
  name: string;
  /** The team that used it last; the service when that is not known. */
  owner: string;
  usedMs: number;
}

export class BaseTrimmer {
  readonly #options: BaseTrimmerOptions;
  /** Uses of each base, by name, that have not ended. */
  readonly #uses = new Counts();
  readonly #lastUse = new Map<string, { owner: string; ms: number }>();
  readonly #removing = new Set<string>();
  /** Made by this daemon. */
  readonly #made = new Set<string>();
  /** Bases that were in use during the trim under way. */
  #usedDuring = new Set<string>();
  #trimming: Promise<void> = Promise.resolve();

  constructor(options: BaseTrimmerOptions) {
    this.#options = options;
  }

  /**
   * The base stays until the result is disposed of, and the promises that wait for its caller have settled. Not to be called for
   * a base that is being removed.
   */
  use(name: string, owner?: string): Disposable {
    this.#uses.add(name);
    this.#usedDuring.add(name);
    if (owner !== undefined) this.#lastUse.set(name, { owner, ms: Date.now() });
    return { [Symbol.dispose]: () => void setImmediate(() => this.#uses.subtract(name)) };
  }

  /** The base is about to be published. To be called while it is in use. */
  noteMade(name: string): void {
    this.#made.add(name);
  }

  isBeingRemoved(name: string): boolean {
    return this.#removing.has(name);
  }

  /** As `use`, also for one that is being removed, and so will be missing, or that is not there yet. */
  async hold(name: string): Promise<Disposable> {
    while (this.#removing.has(name)) await this.#trimming;
    return this.use(name);
  }

  /** One pass; a call during a pass makes another one after it. */
  trim(): Promise<void> {
    const pass = this.#trimming.then(() => this.#trim());
    this.#trimming = pass.catch(() => {});
    return pass;
  }

  async #trim(): Promise<void> {
    const { paths, spare, isCurrent } = this.#options;
    // A use that ends during the pass may have written a capsule that `references` did not find.
    this.#usedDuring = new Set(this.#uses.keys());
    const references = await this.#options.references();
    const outdated: string[] = [];
    const unused: UnusedBase[] = [];
    for (const name of paths.baseNames()) {
      if (this.#usedDuring.has(name)) continue;
      if (mayBeNeeded(paths, references, paths.base(name), { isOwn: this.#made.has(name) })) continue;
      if (!isCurrent(name)) outdated.push(name);
      else unused.push(await this.#describe(name));
    }
    for (const name of [...outdated, ...surplus(unused, spare)]) await this.#remove(name);
  }

  async #describe(name: string): Promise<UnusedBase> {
    const { mtimeMs } = await stat(this.#options.paths.base(name));
    const { owner, ms } = this.#lastUse.get(name) ?? { owner: serviceOwner, ms: 0 };
    return { name, owner, usedMs: Math.max(mtimeMs, ms) };
  }

  async #remove(name: string): Promise<void> {
    const { paths, onRemove } = this.#options;
    if (this.#usedDuring.has(name)) return;
    const folder = paths.base(name);
    this.#removing.add(name);
    try {
      await onRemove(folder);
      await paths.discard(folder);
      this.#lastUse.delete(name);
      this.#made.delete(name);
    } finally {
      this.#removing.delete(name);
    }
  }
}

/**
 * The bases to remove so that `spare` are left: the least recently used of the owner that has the most, so that one team's new
 * shapes do not displace those of all others.
 */
export function surplus(unused: UnusedBase[], spare: number): string[] {
  const byOwner = Map.groupBy(
    unused.toSorted((a, b) => b.usedMs - a.usedMs),
    ({ owner }) => owner,
  );
  const removed: string[] = [];
  while (unused.length - removed.length > spare) {
    const [most] = [...byOwner.values()].toSorted((a, b) => b.length - a.length || oldest(a) - oldest(b));
    removed.push(most!.pop()!.name);
  }
  return removed;
}

function oldest(bases: UnusedBase[]): number {
  return bases.at(-1)?.usedMs ?? Number.POSITIVE_INFINITY;
}
