/** The files of a folder that was fetched: those that belong there, and no other. */
import { chmod, readdir, stat } from "node:fs/promises";
import { basename, join, relative } from "node:path";

/** The checksums of 400 GiB. */
const smallBytes = 8 << 20;

export interface Modes {
  folder: number;
  fileOf: (name: string) => number;
}

/** Throws an Error for a file that is missing or is one too many: what opens the folder may look for it. */
export async function requireExactly(folder: string, names: readonly string[]): Promise<void> {
  const missing = new Set(names);
  for (const { name, isFolder } of await treeOf(folder)) {
    if (!isFolder && !missing.delete(name)) throw new Error(`it has a file ${name}, which does not belong there`);
  }
  for (const name of missing) throw new Error(`it has no file ${name}`);
}

/** Throws an Error for a file that is too large to be read at once. */
export async function requireSmall(path: string): Promise<void> {
  const { size } = await stat(path);
  if (size > smallBytes) throw new Error(`${basename(path)} has ${size} bytes`);
}

/** The modes of a folder and everything in it, whatever the umask. */
export async function setModes(folder: string, { folder: ofFolders, fileOf }: Modes): Promise<void> {
  for (const { name, isFolder } of await treeOf(folder))
    await chmod(join(folder, name), isFolder ? ofFolders : fileOf(name));
  await chmod(folder, ofFolders);
}

async function treeOf(folder: string): Promise<{ name: string; isFolder: boolean }[]> {
  const entries = await readdir(folder, { withFileTypes: true, recursive: true });
  return entries.map((entry) => {
    const name = relative(folder, join(entry.parentPath, entry.name));
    if (!entry.isFile() && !entry.isDirectory()) throw new Error(`its ${name} is no file`);
    return { name, isFolder: entry.isDirectory() };
  });
}
