/**
 * Builds of the images that nothing stands on any more: each upgrade of the agent or of Debian's packages leaves one
 * behind. The daemon removes them when it starts; guest/image makes new ones, perhaps at the same moment.
 */
import { lstat, readdir, readlink, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { readCapsule } from "../disk/capsule-folder.ts";
import { fileNames, type Manifest } from "../disk/checkpoint-folder.ts";
import { readJson } from "../disk/files.ts";
import type { Paths } from "../disk/paths.ts";
import type { Image } from "./images.ts";

/** Builds of each image that stay in any case, to go back to. */
const kept = 2;
/** A build that was published just now is about to become the current one. */
const graceMs = 3_600_000;
const buildName = /^[0-9a-f]{64}$/;

/**
 * Removes the builds that no base, template or capsule needs, but for the newest. Resolves with their folders. Throws
 * when a manifest cannot be read, having removed nothing. Images that are a link belong to another data folder.
 */
export async function trimBuilds(paths: Paths, images: Image[]): Promise<string[]> {
  const room = join(paths.data, "images");
  if ((await lstat(room)).isSymbolicLink()) return [];
  const needed = await neededBuilds(paths);
  for (const { name, hash } of images) needed.add(`${name}/${hash}`);
  const removed: string[] = [];
  for (const image of await readdir(room, { withFileTypes: true })) {
    if (!image.isDirectory()) continue;
    for (const hash of await oldBuilds(join(room, image.name))) {
      if (needed.has(`${image.name}/${hash}`)) continue;
      const grave = paths.scratch(`trimmed-${hash}`);
      await rename(join(room, image.name, hash), grave);
      await rm(grave, { recursive: true, force: true });
      removed.push(`images/${image.name}/${hash}`);
    }
  }
  return removed;
}

/** Neither current nor new. */
async function oldBuilds(folder: string): Promise<string[]> {
  const current = await readlink(join(folder, "current")).catch(() => undefined);
  const names = (await readdir(folder)).filter((name) => buildName.test(name));
  const builds = await Promise.all(
    names.map(async (hash) => ({ hash, builtMs: (await stat(join(folder, hash))).mtimeMs })),
  );
  builds.sort((a, b) => Number(b.hash === current) - Number(a.hash === current) || b.builtMs - a.builtMs);
  const old = builds.slice(kept).filter(({ builtMs }) => Date.now() - builtMs > graceMs);
  return old.map(({ hash }) => hash);
}

/** As `<name>/<hash>`. */
async function neededBuilds(paths: Paths): Promise<Set<string>> {
  const needed = new Set<string>();
  const note = (about: Pick<Manifest, "image"> | undefined) => {
    if (about !== undefined) needed.add(`${about.image.name}/${about.image.hash}`);
  };
  for (const room of [paths.bases, paths.templates]) {
    for (const name of await readdir(room)) note(await readJson<Manifest>(join(room, name, fileNames.manifest)));
  }
  for (const name of await readdir(paths.capsules)) note(await readCapsule(join(paths.capsules, name)));
  return needed;
}
