/**
 * The layout of the data folder. Every path of the host is made here, from validated names.
 *
 *   images/<name>/<hash>/            kernel, initrd, root disk
 *   qemu/<hash>/                     QEMU with its libraries and firmware; sources.json: the installed files it was copied from
 *   bases/<key>/                     checkpoint of a booted image, one per shape and machine
 *   templates/<storage>/             checkpoint of a captured capsule
 *   capsules/<id>/                   capsule.json, vm.json, disk.qcow2, sockets; checkpoint/ while paused
 *   released/<id>.<epoch>.<revision>/ a capsule's folder whose checkpoint is in the cluster's bucket too; it may go at any time, unless it
 *                                    waits for the row of that epoch
 *   lost+found/{capsules,templates}/ folders of theirs that the database does not explain
 *   work/<name>/                     incomplete folders, and those of warm processes; removed at start
 *
 * All but the lost ones are two levels below the data folder: a disk layer names its backing file relatively (`../../bases/…`),
 * which stays valid when a folder is published or the data folder moves.
 */
import { randomUUID } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, renameSync } from "node:fs";
import { rename, rm } from "node:fs/promises";
import { join } from "node:path";
import type { SavedKind } from "../host.ts";

export const savedKinds: readonly SavedKind[] = ["capsules", "templates"];

/** Other names, like those of a file system's lost+found, are ignored. */
const savedPatterns: Record<SavedKind, RegExp> = { capsules: /^cl-[0-9a-z]+$/, templates: /^t[0-9a-f]+$/ };
const releasedPattern = /^cl-[0-9a-z]+\.\d{1,15}\.\d{1,15}$/;
const namePattern = /^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$/;

export class Paths {
  readonly data: string;
  readonly capsules: string;
  readonly templates: string;
  readonly bases: string;
  readonly qemuBuilds: string;
  readonly work: string;
  /** Made with its first folder. */
  readonly releasedFolder: string;
  /** How many folders of capsules have changed their place. */
  moves = 0;
  readonly #lostFound: string;

  constructor(data: string) {
    this.data = data;
    this.capsules = join(data, "capsules");
    this.templates = join(data, "templates");
    this.bases = join(data, "bases");
    this.qemuBuilds = join(data, "qemu");
    this.work = join(data, "work");
    this.releasedFolder = join(data, "released");
    this.#lostFound = join(data, "lost+found");
  }

  /** Creates the folders that are missing. */
  create(): void {
    for (const folder of [this.capsules, this.templates, this.bases, this.qemuBuilds, this.work]) {
      mkdirSync(folder, { recursive: true, mode: 0o700 });
    }
  }

  capsule(id: string): string {
    return join(this.capsules, checked(id));
  }

  /** The ids of existing folders. */
  capsuleIds(): string[] {
    return namesIn(this.capsules, "capsules");
  }

  templateIds(): string[] {
    return namesIn(this.templates, "templates");
  }

  /** The names of existing folders in `lost+found/`. */
  lostNames(kind: SavedKind): string[] {
    const folder = join(this.#lostFound, kind);
    return existsSync(folder) ? namesIn(folder, kind) : [];
  }

  saved(kind: SavedKind, name: string): string {
    return join(this[kind], checked(name));
  }

  /** Where a folder of this name is kept that the database does not explain. */
  lost(kind: SavedKind, name: string): string {
    return join(this.#lostFound, kind, checked(name));
  }

  /** Where a released capsule's folder is kept, by its name there. */
  released(name: string): string {
    return join(this.releasedFolder, checked(name));
  }

  /** The names of existing folders. */
  releasedNames(): string[] {
    if (!existsSync(this.releasedFolder)) return [];
    return readdirSync(this.releasedFolder).filter((name) => releasedPattern.test(name));
  }

  /** The names of existing folders. */
  baseNames(): string[] {
    return readdirSync(this.bases).filter((name) => namePattern.test(name));
  }

  template(storage: string): string {
    return join(this.templates, checked(storage));
  }

  base(key: string): string {
    return join(this.bases, checked(key));
  }

  scratch(name: string): string {
    return join(this.work, checked(name));
  }

  /** Renames a capsule's folder, in one turn with the count of moves. The caller syncs both parents. */
  move(from: string, to: string): void {
    renameSync(from, to);
    this.moves++;
  }

  /**
   * Removes a folder of the data folder. Renamed into `work/` first, it is whole or absent for every reader, and a crash leaves
   * nothing that the next start does not remove.
   */
  async discard(folder: string): Promise<void> {
    const discarded = this.scratch(`discarded-${randomUUID()}`);
    await rename(folder, discarded);
    await rm(discarded, { recursive: true, force: true });
  }
}

function namesIn(folder: string, kind: SavedKind): string[] {
  return readdirSync(folder).filter((name) => savedPatterns[kind].test(name));
}

function checked(name: string): string {
  if (!namePattern.test(name)) throw new Error(`not a folder name: ${JSON.stringify(name)}`);
  return name;
}
