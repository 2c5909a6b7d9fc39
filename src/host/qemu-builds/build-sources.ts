/** The installed files that make up a build of QEMU, and a cheap way to notice that one of them was replaced. */
import { existsSync, readdirSync, realpathSync, statSync } from "node:fs";
import { open } from "node:fs/promises";
import { basename, dirname, join, relative } from "node:path";
import { linkedFiles, programFilesOf } from "../../vmm/jail/program-files.ts";

export interface Source {
  /** Absolute. */
  path: string;
  /** Relative to the build's folder. */
  name: string;
}

/**
 * Names in a build's folder. QEMU looks for accelerators' modules relative to the program that the kernel started, which is the
 * loader, so the loader lies beside the program.
 */
export const buildNames = { program: "bin/qemu-system-x86_64", loader: "bin/ld.so", libraries: "lib" } as const;

const elfMagic = Buffer.from("\x7fELF", "latin1");
/** PC firmware. The other files are for other processors, and keyboard layouts. */
const firmware = /\.(bin|rom)$/;
/** The modules for devices, sound and displays belong to hardware that no VM here has. */
const module = /^accel-.*\.so$/;

/** Throws an Error for a program that cannot be copied: a script. */
export async function sourcesOf(program: string): Promise<Source[]> {
  const { loader, libraries, data } = await programFilesOf(program);
  const path = realpathSync(program);
  if (!(await isElf(path))) throw new Error(`${program} is a script`);
  const modules = modulesOf(path, libraries);
  const linked = await Promise.all(modules.map((source) => linkedFiles(source.path)));
  const all = new Set([...libraries, ...linked.flatMap((files) => files.libraries)]);
  const sources: Source[] = [{ path, name: buildNames.program }, ...modules, ...data.flatMap(firmwareIn)];
  if (loader !== undefined) sources.push({ path: realpathSync(loader), name: buildNames.loader });
  for (const library of all) sources.push({ path: realpathSync(library), name: join("lib", basename(library)) });
  const byName = new Map(sources.map((source) => [source.name, source]));
  return [...byName.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
}

/**
 * Device, inode, size and times of the files, as one string; undefined when one is missing. A package manager replaces a file
 * by another inode; one that is overwritten in place has other times.
 */
export function fingerprintOf(paths: readonly string[]): string | undefined {
  const parts: string[] = [];
  for (const path of paths) {
    const found = statSync(path, { throwIfNoEntry: false, bigint: true });
    if (found === undefined) return undefined;
    const { dev, ino, size, mtimeNs, ctimeNs } = found;
    parts.push([dev, ino, size, mtimeNs, ctimeNs].join(":"));
  }
  return parts.join(" ");
}

function modulesOf(program: string, libraries: string[]): Source[] {
  const prefix = dirname(dirname(program));
  const folders = new Set(libraries.map((library) => join(dirname(realpathSync(library)), "qemu")).filter(existsSync));
  return [...folders].flatMap((folder) =>
    readdirSync(folder)
      .filter((name) => module.test(name))
      .map((name) => ({ path: join(folder, name), name: relative(prefix, join(folder, name)) }))
      .filter(({ name }) => !name.startsWith("..")),
  );
}

function firmwareIn(folder: string): Source[] {
  return readdirSync(folder)
    .filter((name) => firmware.test(name))
    .map((name) => ({ path: realpathSync(join(folder, name)), name: join("share", basename(folder), name) }));
}

async function isElf(path: string): Promise<boolean> {
  await using file = await open(path, "r");
  const { buffer } = await file.read(Buffer.alloc(elfMagic.length), 0, elfMagic.length, 0);
  return buffer.equals(elfMagic);
}
