/**
 * The images of a data folder. Each folder with a link `current` is an image, a built-in template of that name: a second image
 * needs no code. Older builds of an image stay while a capsule, base or template stands on them.
 *
 *   <data>/images/<name>/<hash>/{kernel, initrd, root.ext4, manifest.json}
 *   <data>/images/<name>/current → <hash>
 */
import { lstatSync, readdirSync, statSync } from "node:fs";
import { lstat, readdir, readlink, stat } from "node:fs/promises";
import { join } from "node:path";
import { createDefaults } from "../../wire/defaults.ts";
import { isMissing } from "../disk/files.ts";
import type { Paths } from "../disk/paths.ts";
import { mayBeNeeded, type References } from "../disk/references.ts";
import type { BuiltIn } from "../host.ts";
import { type Image, loadImage } from "./images.ts";

export class ImageStore {
  /** The current builds; new capsules start from these. */
  readonly current: readonly Image[];
  /** The current builds as templates. */
  readonly builtIn: readonly BuiltIn[];
  /** The image that a start needs. */
  readonly default: Image;
  readonly #dataDir: string;
  /** Older builds that were used, by name and hash; as many as there are build folders. */
  readonly #older = new Map<string, Image>();

  /**
   * Reads the images of a data folder. Throws CapsuleError when the default one is missing or damaged; another one that
   * cannot be used is passed to `onProblem` and left out.
   */
  static open(dataDir: string, onProblem: (what: string, error: unknown) => void): ImageStore {
    const images: [Image, ...Image[]] = [loadImage(dataDir, createDefaults.template)];
    for (const name of namesIn(join(dataDir, "images")).filter((name) => name !== createDefaults.template)) {
      try {
        if (!imageName.test(name)) throw new Error(`its name does not match ${imageName.source}`);
        images.push(loadImage(dataDir, name));
      } catch (error) {
        onProblem(`the image ${name} cannot be used`, error);
      }
    }
    return new ImageStore(dataDir, images);
  }

  constructor(dataDir: string, current: readonly [Image, ...Image[]]) {
    this.#dataDir = dataDir;
    this.current = current;
    this.default = current[0];
    this.builtIn = current.map(describe);
  }

  named(name: string): Image | undefined {
    return this.current.find((image) => image.name === name);
  }

  /** The current build or an older one. Throws CapsuleError when it was removed or is damaged. */
  build({ name, hash }: Pick<Image, "name" | "hash">): Image {
    const key = `${name}/${hash}`;
    const current = this.named(name);
    const known = current?.hash === hash ? current : this.#older.get(key);
    if (known !== undefined) return known;
    const image = loadImage(this.#dataDir, name, hash);
    this.#older.set(key, image);
    return image;
  }
}

/** A template's name as the API has it, and short enough for the names of the image's bases. */
const imageName = /^[a-zA-Z0-9][a-zA-Z0-9._-]{0,31}$/;

/** In alphabetical order. The parts of images, which are built beside them, have no link. */
function namesIn(folder: string): string[] {
  return readdirSync(folder)
    .filter((name) => isLink(join(folder, name, "current")))
    .sort();
}

function isLink(path: string): boolean {
  try {
    return lstatSync(path).isSymbolicLink();
  } catch (error) {
    if (isMissing(error)) return false;
    throw error;
  }
}

function describe({ name, kernel, initrd, root, diskBytes }: Image): BuiltIn {
  const files = [kernel, initrd, root].map((path) => statSync(path));
  const sizeBytes = files.reduce((sum, file) => sum + file.blocks * 512, 0);
  const diskMb = Math.floor(diskBytes / 2 ** 20);
  return { name, sizeBytes, diskMb, createdAt: Math.round(Math.max(...files.map((file) => file.mtimeMs))) };
}

/** Newest builds of each image that always stay, for a rollback. */
const keptBuilds = 2;
/** A build that was just published is about to become the current one. */
const buildGraceMs = 3_600_000;
const buildName = /^[0-9a-f]{64}$/;

/**
 * Removes builds that no base, template or capsule uses, except for the newest; guest/image may publish another one at the
 * same time. Call before the first start. Resolves with their folders. An image folder that is a link belongs to another data
 * folder.
 */
export async function trimBuilds(paths: Paths, images: readonly Image[], references: References): Promise<string[]> {
  const builds = join(paths.data, "images");
  if ((await lstat(builds)).isSymbolicLink()) return [];
  const inUse = new Set(images.map(({ name, hash }) => join(builds, name, hash)));
  const removed: string[] = [];
  for (const image of await readdir(builds, { withFileTypes: true })) {
    if (!image.isDirectory()) continue;
    for (const hash of await oldBuilds(join(builds, image.name))) {
      const folder = join(builds, image.name, hash);
      if (inUse.has(folder) || mayBeNeeded(paths, references, folder, { isOwn: false })) continue;
      await paths.discard(folder);
      removed.push(`images/${image.name}/${hash}`);
    }
  }
  return removed;
}

/** Builds that are neither current nor new. */
async function oldBuilds(folder: string): Promise<string[]> {
  const current = await readlink(join(folder, "current")).catch(() => undefined);
  const names = (await readdir(folder)).filter((name) => buildName.test(name));
  const builds = await Promise.all(
    names.map(async (hash) => ({ hash, builtMs: (await stat(join(folder, hash))).mtimeMs })),
  );
  builds.sort((a, b) => Number(b.hash === current) - Number(a.hash === current) || b.builtMs - a.builtMs);
  const old = builds.slice(keptBuilds).filter(({ builtMs }) => Date.now() - builtMs > buildGraceMs);
  return old.map(({ hash }) => hash);
}
