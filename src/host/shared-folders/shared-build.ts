/** A kept build of QEMU as a folder that hosts share. */
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { isObject, isSha256, isSize, isText } from "../disk/fields.ts";
import { readJson, sha256Of } from "../disk/files.ts";
import { buildFormat, type FileRecords, hashOf, isProgram, manifestName, modes } from "../qemu-builds/build-folder.ts";
import { requireExactly, requireSmall, setModes } from "./exact-tree.ts";
import type { SharedFolder } from "./shared-folder.ts";

const version = /^\d{1,4}\.\d{1,4}\.\d{1,4}$/;

/** Throws an Error where it is damaged, as far as the sizes of its files say. */
export async function buildIn(builds: string, build: string): Promise<SharedFolder> {
  const folder = join(builds, build);
  const records = await recordsIn(folder);
  for (const [name, { bytes }] of Object.entries(records)) {
    const { size } = await stat(join(folder, name));
    if (size !== bytes) throw new Error(`its ${name} has ${size} bytes, not ${bytes}`);
  }
  const files = [manifestName, ...Object.keys(records)].map((name) => {
    return { name, path: join(folder, name), isExecutable: isProgram(name) };
  });
  return { sha256: build, layers: [], files };
}

/**
 * Throws an Error unless the folder has the build of this hash, whole and with nothing beside it: its loader looks for libraries by name.
 * None of it is run.
 */
export async function requireBuild(folder: string, build: string): Promise<void> {
  const records = await recordsIn(folder);
  await requireExactly(folder, [manifestName, ...Object.keys(records)]);
  if (hashOf(records) !== build) throw new Error("its manifest is that of another build");
  for (const [name, { sha256 }] of Object.entries(records)) {
    if ((await sha256Of(join(folder, name))) !== sha256)
      throw new Error(`its ${name} has other bytes than its manifest says`);
  }
  await setModes(folder, { folder: modes.folder, fileOf: (name) => (isProgram(name) ? modes.program : modes.file) });
}

async function recordsIn(folder: string): Promise<FileRecords> {
  await requireSmall(join(folder, manifestName));
  const manifest = await readJson<unknown>(join(folder, manifestName));
  if (!isObject(manifest) || manifest.format !== buildFormat) throw new Error("its manifest cannot be read");
  if (!isText(manifest.version) || !version.test(manifest.version)) throw new Error("its manifest has no version");
  if (!isText(manifest.kept_at) || Number.isNaN(Date.parse(manifest.kept_at))) throw new Error("it has no time");
  if (!isObject(manifest.files)) throw new Error("its manifest has no files");
  for (const [name, record] of Object.entries(manifest.files)) {
    if (!isObject(record) || !isSize(record.bytes) || !isSha256(record.sha256))
      throw new Error(`its manifest does not describe ${JSON.stringify(name)}`);
  }
  return manifest.files as FileRecords;
}
