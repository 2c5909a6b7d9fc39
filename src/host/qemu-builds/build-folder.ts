/**
 * A kept build of QEMU: program, loader, libraries and firmware, copied into a folder that is named by their hash.
 *
 *   <data>/qemu/<hash>/{manifest.json, bin/, lib/, share/}
 *
 * It runs by its own loader, so that nothing outside the folder matters, and a jail sees it by a single mount.
 */
import { hash, randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import { chmod, constants, copyFile, mkdir, rm, stat, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { allSettledOrThrow } from "../../vmm/all-settled.ts";
import type { QemuProgram } from "../../vmm/machine/qemu-program.ts";
import { qemuVersion } from "../../vmm/machine/qemu-version.ts";
import { DiskSpace } from "../disk/disk-space.ts";
import { explainSpace, jsonText, publish, readJson, sha256Of, syncFile, syncFolder } from "../disk/files.ts";
import { buildNames, type Source } from "./build-sources.ts";

export const buildFormat = 1;
export const manifestName = "manifest.json";
export const buildPattern = /^[0-9a-f]{64}$/;
/** The names of folders that are not finished. */
export const unfinishedPattern = /^new-[0-9a-f]{16}$/;
/** QEMU's jail runs under a user of its own. Only the data folder's mode keeps others out. */
export const modes = { folder: 0o755, program: 0o755, file: 0o644 } as const;

export type FileRecords = Record<string, { bytes: number; sha256: string }>;

interface BuildManifest {
  format: typeof buildFormat;
  version: string;
  /** ISO 8601. */
  kept_at: string;
  files: FileRecords;
}

export interface KeptBuild extends QemuProgram {
  build: string;
  keptAt: string;
}

/** Undefined when there is none. Throws an Error for one that is damaged, as far as the sizes of its files say. */
export async function openBuild(builds: string, build: string): Promise<KeptBuild | undefined> {
  const folder = join(builds, build);
  const manifest = await readJson<BuildManifest>(join(folder, manifestName));
  if (manifest === undefined) {
    if (existsSync(folder)) throw new Error(`${folder} has no ${manifestName}`);
    return undefined;
  }
  if (manifest.format !== buildFormat) throw new Error(`${folder} has format ${String(manifest.format)}`);
  const { version, kept_at: keptAt, files } = manifest;
  const names = Object.keys(files);
  await allSettledOrThrow(
    names.map(async (name) => {
      const { size } = await stat(join(folder, name));
      if (size !== files[name]!.bytes) throw new Error(`${join(folder, name)} has ${size} bytes`);
    }),
  );
  return { version, build, keptAt, command: commandIn(folder, names), readOnly: [folder] };
}

/** A sentence about a file whose bytes are not those that were copied; undefined: there is none. */
export async function damageOf(builds: string, build: string): Promise<string | undefined> {
  const folder = join(builds, build);
  const manifest = await readJson<BuildManifest>(join(folder, manifestName));
  const files = manifest?.files ?? {};
  if (hashOf(files) !== build) return `${join(folder, manifestName)} is that of another build`;
  for (const [name, { sha256 }] of Object.entries(files)) {
    if ((await sha256Of(join(folder, name))) !== sha256)
      return `${join(folder, name)} has other bytes than were copied`;
  }
  return undefined;
}

/**
 * Copies these files, unless the same ones are kept already. Throws CapsuleError("no_space") when the disk is too full, and an
 * Error when the copy does not run: the data folder may be mounted with `noexec`.
 */
export async function keepBuild(builds: string, sources: readonly Source[]): Promise<KeptBuild> {
  if (/[:;]/.test(builds)) throw new Error(`${builds} cannot be in a list of library folders`);
  const files = await recordsOf(sources);
  const build = hashOf(files);
  const openSound = async () => {
    const found = await openBuild(builds, build).catch(() => undefined);
    const isSound = found !== undefined && (await damageOf(builds, build)) === undefined;
    return isSound ? found : undefined;
  };
  const found = await openSound();
  if (found !== undefined) return found;
  const bytes = Object.values(files).reduce((sum, file) => sum + file.bytes, 0);
  using _room = new DiskSpace({ folder: builds, reserveBytes: 0 }).reserve(bytes, "keeping a copy of QEMU");
  const unfinished = join(builds, `new-${randomBytes(8).toString("hex")}`);
  try {
    await fill(unfinished, sources, files);
    const others = await openSound(); // of another server that shares the folder: VMs may run in it
    if (others === undefined) {
      await rm(join(builds, build), { recursive: true, force: true }); // a damaged one
      await publish(unfinished, join(builds, build));
    }
  } catch (error) {
    if ((await openSound()) === undefined) throw explainSpace(error, "keeping a copy of QEMU");
  } finally {
    await rm(unfinished, { recursive: true, force: true });
  }
  return (await openBuild(builds, build))!;
}

/** Everything in `folder` is synced when it resolves. */
async function fill(folder: string, sources: readonly Source[], files: FileRecords): Promise<void> {
  const names = sources.map(({ name }) => name);
  const folders = foldersOf(names).map((name) => join(folder, name));
  for (const path of folders) {
    await mkdir(path, { recursive: true });
    await chmod(path, modes.folder);
  }
  await allSettledOrThrow(
    sources.map(async ({ path, name }) => {
      const copy = join(folder, name);
      await copyFile(path, copy, constants.COPYFILE_FICLONE);
      await chmod(copy, isProgram(name) ? modes.program : modes.file);
      await syncFile(copy);
    }),
  );
  for (const name of names) {
    const isSame = (await sha256Of(join(folder, name))) === files[name]!.sha256;
    if (!isSame) throw new Error(`QEMU's file ${name} changed while it was copied`);
  }
  const version = await qemuVersion(programIn(folder, names));
  const manifest: BuildManifest = { format: buildFormat, version, kept_at: new Date().toISOString(), files };
  await writeFile(join(folder, manifestName), jsonText(manifest), { mode: modes.file });
  await syncFile(join(folder, manifestName));
  await allSettledOrThrow(folders.map(syncFolder));
}

export function isProgram(name: string): boolean {
  return name.startsWith("bin/");
}

function commandIn(folder: string, names: readonly string[]): QemuProgram["command"] {
  const data = foldersOf(names).filter((name) => dirname(name) === "share");
  return [...programIn(folder, names), ...data.flatMap((name) => ["-L", join(folder, name)])];
}

function programIn(folder: string, names: readonly string[]): QemuProgram["command"] {
  const program = join(folder, buildNames.program);
  if (!names.includes(buildNames.loader)) return [program];
  return [join(folder, buildNames.loader), "--library-path", join(folder, buildNames.libraries), program];
}

/** All folders of these files, relative, outer ones first; "." among them. */
function foldersOf(names: readonly string[]): string[] {
  const found = new Set<string>(["."]);
  for (const name of names) for (let at = dirname(name); at !== "."; at = dirname(at)) found.add(at);
  return [...found].sort();
}

async function recordsOf(sources: readonly Source[]): Promise<FileRecords> {
  const files: FileRecords = {};
  for (const { path, name } of sources) files[name] = { bytes: (await stat(path)).size, sha256: await sha256Of(path) };
  return files;
}

/** The name of the build that has these files. */
export function hashOf(files: FileRecords): string {
  const lines = Object.keys(files)
    .sort()
    .map((name) => `${files[name]!.sha256}  ${name}\n`);
  return hash("sha256", lines.join(""));
}
