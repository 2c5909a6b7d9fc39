/**
 * Parts of an image that take long to build and rarely change: the kernel and the root file system. A part is a folder
 * named by the key of its inputs. It is built in a scratch folder and published by rename, so an existing part is
 * complete.
 *
 *   <data>/images/parts/<part>-<key>/ …
 */
import { chmod, mkdir, mkdtemp, open, readdir, rename, rm, stat } from "node:fs/promises";
import { dirname, join } from "node:path";

export interface Parts {
  /** Folder of all images of this data folder. */
  images: string;
  /** Rebuild parts with the mirror's newest packages. */
  isUpgrade: boolean;
  say(line: string): void;
  /** Shows a long step, on a terminal with its seconds, until the returned function is called. */
  begin(line: string): () => void;
}

/** A part's file that images share. */
export interface PartFile {
  path: string;
  sha256: string;
}

/** Names in progress messages. */
const names = { kernel: "kernel", root: "root file system" };
type PartName = keyof typeof names;

export function partFolder(images: string, name: PartName, key: string): string {
  return join(images, "parts", `${name}-${key.slice(0, 16)}`);
}

/** Resolves with the part's folder; `build` fills an empty folder if the part does not exist. */
export async function part(
  parts: Parts,
  name: PartName,
  key: string,
  build: (folder: string) => Promise<void>,
): Promise<string> {
  const folder = partFolder(parts.images, name, key);
  if (!parts.isUpgrade && (await exists(folder))) return folder;
  const began = performance.now();
  const end = parts.begin(`building the ${names[name]} …`);
  await publish(folder, build).finally(end);
  parts.say(`built the ${names[name]} in ${((performance.now() - began) / 1000).toFixed(1)} s`);
  return folder;
}

/** Fills a scratch folder, syncs it and renames it to `folder`, replacing an existing one. */
export async function publish(folder: string, fill: (scratch: string) => Promise<void>): Promise<void> {
  await mkdir(dirname(folder), { recursive: true });
  const scratch = await mkdtemp(join(dirname(folder), ".new-"));
  try {
    await fill(scratch);
    await chmod(scratch, 0o755); // QEMU's unprivileged user reads images
    for (const file of await readdir(scratch, { withFileTypes: true })) await sync(join(scratch, file.name));
    await sync(scratch);
    await rm(folder, { recursive: true, force: true });
    await rename(scratch, folder);
    await sync(dirname(folder));
  } finally {
    await rm(scratch, { recursive: true, force: true });
  }
}

/** Removes all other parts, and scratch folders of failed builds. Images keep their own links to the files. */
export async function prune({ images }: Parts, kept: string[]): Promise<void> {
  const folder = join(images, "parts");
  for (const name of await readdir(folder)) {
    if (!kept.includes(join(folder, name))) await rm(join(folder, name), { recursive: true, force: true });
  }
}

export async function sync(path: string): Promise<void> {
  const handle = await open(path, "r");
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

export async function exists(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  );
}
