/**
 * Folders that the database does not explain (docs/adr/0036): kept in `lost+found/` for a week, or until the disk is short. The
 * layout below it is that of the data folder, so `mv` puts a folder back. Other files are left alone: a file system's check
 * writes into a folder of that name.
 */
import { existsSync, statSync } from "node:fs";
import { mkdir, utimes } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { SavedKind } from "../host.ts";
import { checkpointName } from "./capsule-folder.ts";
import { fileNames } from "./checkpoint-folder.ts";
import { allocatedInAll, publish, syncFolder } from "./files.ts";
import { type Paths, savedKinds } from "./paths.ts";

const keptMs = 7 * 86_400_000;

interface Lost {
  path: string;
  /** When it was moved here, milliseconds since the epoch. */
  sinceMs: number;
}

export class LostFound {
  readonly #paths: Paths;
  readonly #now: () => number;
  #removing: Promise<unknown> = Promise.resolve();

  constructor(paths: Paths, now: () => number = Date.now) {
    this.#paths = paths;
    this.#now = now;
  }

  /** The number of folders. */
  get size(): number {
    return this.#all().length;
  }

  /** Whether the folder is complete: a paused capsule, or a template. */
  isSaved(kind: SavedKind, name: string): boolean {
    return existsSync(join(this.checkpointOf(kind, name), fileNames.manifest));
  }

  checkpointOf(kind: SavedKind, name: string): string {
    const folder = this.#paths.saved(kind, name);
    return kind === "capsules" ? join(folder, checkpointName) : folder;
  }

  /** Moves a folder here, durably. Nothing may use it. An earlier one of its name goes. */
  async keep(kind: SavedKind, name: string): Promise<void> {
    const [folder, kept] = [this.#paths.saved(kind, name), this.#paths.lost(kind, name)];
    if (existsSync(kept)) await this.#paths.discard(kept);
    await mkdir(dirname(kept), { recursive: true, mode: 0o700 });
    const now = this.#now() / 1_000;
    await utimes(folder, now, now);
    await publish(folder, kept);
    await syncFolder(dirname(folder));
  }

  /** Bytes on disk of all folders. */
  bytes(): Promise<number> {
    return allocatedInAll(this.#all().flatMap(({ path }) => [path, join(path, checkpointName)]));
  }

  /** Removes the folders that have been here for a week. */
  removeExpired(): Promise<void> {
    return this.#oneByOne(async () => {
      const expired = this.#all().filter(({ sinceMs }) => this.#now() - sinceMs >= keptMs);
      for (const { path } of expired) await this.#paths.discard(path);
    });
  }

  /** Removes the folder that has been here longest; false when there is none. A call meanwhile waits, then removes the next. */
  removeOldest(): Promise<boolean> {
    return this.#oneByOne(async () => {
      const [oldest] = this.#all().sort((a, b) => a.sinceMs - b.sinceMs);
      if (oldest !== undefined) await this.#paths.discard(oldest.path);
      return oldest !== undefined;
    });
  }

  #oneByOne<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#removing.then(work);
    this.#removing = result.catch(() => {});
    return result;
  }

  #all(): Lost[] {
    return savedKinds.flatMap((kind) =>
      this.#paths.lostNames(kind).flatMap((name) => {
        const path = this.#paths.lost(kind, name);
        const found = statSync(path, { throwIfNoEntry: false });
        return found === undefined ? [] : [{ path, sinceMs: found.mtimeMs }];
      }),
    );
  }
}
