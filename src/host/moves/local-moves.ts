/** The moves of folders in this host's data folder. moved-folders.ts has the contract of each call. */
import { existsSync } from "node:fs";
import { mkdir, stat, utimes } from "node:fs/promises";
import { join } from "node:path";
import { Counts } from "../../counts.ts";
import { CapsuleError, messageOf } from "../../wire/errors.ts";
import type { Verifier } from "../checkpoint/verifier.ts";
import { capsuleName, checkpointName, diskName, vmName } from "../disk/capsule-folder.ts";
import { fileNames } from "../disk/checkpoint-folder.ts";
import { requireSameLayer } from "../disk/disk-layer.ts";
import type { DiskSpace } from "../disk/disk-space.ts";
import { allocatedInAll, isMissing, syncFolder } from "../disk/files.ts";
import { readHashes } from "../disk/hashes.ts";
import { hashesName, type Manifest } from "../disk/manifest.ts";
import type { Paths } from "../disk/paths.ts";
import type { Bases } from "../images/bases.ts";
import { checkpointParts, finishFetched, type MoveOptions, readFolder } from "./fetched-folder.ts";
import type {
  CachedFolder,
  FetchedRow,
  HeldRow,
  MovedFile,
  MovedFolders,
  MovedLayer,
  MovingCapsule,
  ReleasedAs,
} from "./moved-folders.ts";
import { layersOf } from "./moved-record.ts";

export interface LocalMovesOptions extends MoveOptions {
  verifier: Pick<Verifier, "requireSound" | "forget" | "hashNow">;
  space: Pick<DiskSpace, "forgetPause">;
  bases: Pick<Bases, "hold">;
}

const namePattern = /^(cl-[0-9a-z]+)\.(\d{1,15})\.(\d{1,15})$/;

export class LocalMoves implements MovedFolders {
  readonly #options: LocalMovesOptions;
  /** Capsules that are on their way here, each as often as it is kept. */
  readonly #kept = new Counts();

  constructor(options: LocalMovesOptions) {
    this.#options = options;
  }

  async describe(id: string): Promise<MovingCapsule> {
    const { paths, verifier } = this.#options;
    const [what, folder] = [`capsule ${id}`, paths.capsule(id)];
    const checkpoint = join(folder, checkpointName);
    verifier.requireSound(checkpoint);
    const hashes = await readHashes(checkpoint);
    if (hashes === undefined) {
      verifier.hashNow(checkpoint);
      throw new CapsuleError("invalid_state", `the checkpoint of ${what} has no hashes yet`);
    }
    const isResumed = existsSync(join(folder, vmName)) || existsSync(join(checkpoint, fileNames.disk));
    if (isResumed) throw new CapsuleError("invalid_state", `${what} is being resumed`);
    const { manifest, record } = await readFolder(folder, this.#options).catch((error: unknown) => {
      if (error instanceof CapsuleError) throw error;
      throw new CapsuleError("internal_error", `${what} cannot be moved: ${messageOf(error)}`, { cause: error });
    });
    requireSameLayer(folder, manifest, what);
    const files = [
      ...[capsuleName, diskName].map((name) => ({ name, path: join(folder, name) })),
      ...checkpointParts.map((name) => ({
        ...{ name: `${checkpointName}/${name}`, path: join(checkpoint, name) },
        sha256: hashes[name]?.sha256 ?? wholeOf(name, manifest),
      })),
    ] satisfies MovedFile[];
    let bytes = 0;
    for (const { path } of files) bytes += (await stat(path)).size;
    return { files, layers: layersOf(record), machine: manifest.machine, revision: record.revision, record, bytes };
  }

  async setAside(id: string, of: ReleasedAs): Promise<void> {
    const { paths, verifier, space } = this.#options;
    const [folder, aside] = [paths.capsule(id), paths.released(nameOf(id, of))];
    if (!existsSync(folder)) return; // an earlier call has done it
    if (existsSync(join(folder, vmName))) throw new CapsuleError("internal_error", `capsule ${id} may still have a VM`);
    verifier.forget(join(folder, checkpointName));
    if (existsSync(aside)) await paths.discard(aside);
    await this.#makeReleased();
    const now = new Date();
    await utimes(folder, now, now);
    paths.move(folder, aside);
    await syncFolder(paths.releasedFolder);
    await syncFolder(paths.capsules);
    space.forgetPause(id);
  }

  async bringBack(id: string, of: ReleasedAs, epoch: number): Promise<boolean> {
    const { paths } = this.#options;
    const name = nameOf(id, of);
    const aside = paths.released(name);
    if (!existsSync(aside)) return false;
    const waiting = await this.placeFor(id, { ...of, epoch });
    if (!(await this.#isUsable(aside, of))) {
      await this.drop(name);
      return false;
    }
    if (!existsSync(aside)) return false; // dropped meanwhile
    paths.move(aside, waiting);
    await syncFolder(paths.releasedFolder);
    return true;
  }

  async placeFor(id: string, as: ReleasedAs): Promise<string> {
    const { paths } = this.#options;
    if (existsSync(paths.capsule(id)))
      throw new CapsuleError("internal_error", `the folder of capsule ${id} is there already`);
    await this.#makeReleased();
    await this.drop(nameOf(id, as));
    return folderOf(paths, id, as);
  }

  /** Not synced: after a power cut that has undone it the next start does it again. */
  take(id: string, as: ReleasedAs): void {
    const { paths } = this.#options;
    paths.move(folderOf(paths, id, as), paths.capsule(id));
  }

  async putBack(id: string, as: ReleasedAs, of: ReleasedAs): Promise<void> {
    const { paths } = this.#options;
    const [waiting, aside] = [folderOf(paths, id, as), folderOf(paths, id, of)];
    if (!existsSync(waiting)) return;
    await this.drop(nameOf(id, of));
    paths.move(waiting, aside);
    await syncFolder(paths.releasedFolder);
  }

  keep(id: string): Disposable {
    this.#kept.add(id);
    return { [Symbol.dispose]: () => this.#kept.subtract(id) };
  }

  finish(folder: string, row: FetchedRow): Promise<void> {
    return finishFetched(folder, row, this.#options);
  }

  async hold(layers: readonly Pick<MovedLayer, "kind" | "key">[]): Promise<Disposable> {
    const stack = new DisposableStack();
    for (const { kind, key } of layers) if (kind === "base") stack.use(await this.#options.bases.hold(key));
    return stack;
  }

  async cached(): Promise<CachedFolder[]> {
    const { paths } = this.#options;
    const found = [];
    for (const name of paths.releasedNames()) {
      const [path, of] = [paths.released(name), partsOf(name)];
      const usedMs = await stat(path).then(
        ({ mtimeMs }) => mtimeMs,
        () => undefined, // it has just gone
      );
      if (of === undefined || usedMs === undefined || this.#kept.of(of.id) > 0) continue;
      found.push({ name, ...of, bytes: await allocatedInAll([path, join(path, checkpointName)]), usedMs });
    }
    return found.sort((a, b) => a.usedMs - b.usedMs).map(({ usedMs: _, ...folder }) => folder);
  }

  async drop(name: string): Promise<void> {
    const { paths } = this.#options;
    await paths.discard(paths.released(name)).catch((error: unknown) => {
      if (!isMissing(error)) throw error;
    });
  }

  async bytes(): Promise<number> {
    return (await this.cached()).reduce((sum, { bytes }) => sum + bytes, 0);
  }

  async dropOldest(): Promise<boolean> {
    const [oldest] = await this.cached();
    if (oldest !== undefined) await this.drop(oldest.name);
    return oldest !== undefined;
  }

  async repair(held: Iterable<HeldRow>): Promise<string[]> {
    const { paths } = this.#options;
    const byId = Map.groupBy(
      paths.releasedNames().flatMap((name) => partsOf(name) ?? []),
      ({ id }) => id,
    );
    const repaired: string[] = [];
    for (const { id, epoch, isReleasing } of byId.size === 0 ? [] : held) {
      const waiting = byId.get(id)?.find((each) => each.epoch === epoch);
      if (waiting === undefined || isReleasing || existsSync(paths.capsule(id))) continue;
      this.take(id, waiting);
      repaired.push(id);
    }
    if (repaired.length > 0) for (const folder of [paths.capsules, paths.releasedFolder]) await syncFolder(folder);
    return repaired;
  }

  async #makeReleased(): Promise<void> {
    const { paths } = this.#options;
    const isNew = (await mkdir(paths.releasedFolder, { recursive: true, mode: 0o700 })) !== undefined;
    if (isNew) await syncFolder(paths.data);
  }

  /** Whether the folder is what its name says, and what it stands on is here. */
  async #isUsable(aside: string, { revision }: ReleasedAs): Promise<boolean> {
    try {
      const { manifest, record } = await readFolder(aside, this.#options);
      requireSameLayer(aside, manifest, "the capsule");
      return record.revision === revision;
    } catch {
      return false;
    }
  }
}

/** The hash of a small file, which is one piece. */
function wholeOf(name: string, { files }: Manifest): string[] | undefined {
  const { sha256, bytes } = (name === hashesName ? undefined : files[name]) ?? {};
  return sha256 === undefined || bytes === 0 ? undefined : [sha256];
}

function nameOf(id: string, { epoch, revision }: ReleasedAs): string {
  return `${id}.${epoch}.${revision}`;
}

function partsOf(name: string): ({ id: string } & ReleasedAs) | undefined {
  const [, id, epoch, revision] = namePattern.exec(name) ?? [];
  return id === undefined ? undefined : { id, epoch: Number(epoch), revision: Number(revision) };
}

/** The place of a folder that was set aside. */
export function folderOf(paths: Paths, id: string, of: ReleasedAs): string {
  return paths.released(nameOf(id, of));
}
