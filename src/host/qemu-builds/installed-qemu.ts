/** The installed QEMU, and its copies in the data folder: loading them, and making one. */
import { lstat, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { findProgram } from "../../vmm/jail/program-files.ts";
import { installedProgram, type QemuProgram } from "../../vmm/machine/qemu-program.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { readJson, writeJson } from "../disk/files.ts";
import type { Paths } from "../disk/paths.ts";
import { buildPattern, type KeptBuild, keepBuild, openBuild, unfinishedPattern } from "./build-folder.ts";
import { fingerprintOf, sourcesOf } from "./build-sources.ts";

export interface QemuBuildsOptions {
  paths: Pick<Paths, "qemuBuilds" | "discard">;
  /** The installed program, looked up in PATH unless absolute. */
  program: string;
  /** Throws for a version that may not be used. */
  accept: (version: string) => void;
  /** Called when the installed program could not be kept or not be taken into use, or a kept one is damaged. */
  onProblem: (what: string, error: unknown) => void;
}

/** The copies, by build. */
export type Kept = Map<string, KeptBuild>;

/** The installed program. */
export interface Installed {
  /** Its copy, or itself when it could not be copied. */
  program: QemuProgram;
  /** Its files and their fingerprint when they were copied. */
  paths: string[];
  fingerprint: string;
  /** Why there is no copy. */
  failure?: unknown;
}

/** Lets a start do without reading the installed files. */
interface SourcesFile {
  program: string;
  build: string;
  paths: string[];
  fingerprint: string;
}

const sourcesName = "sources.json";
const attempts = 3;

/** The builds in the data folder. Removes what a keeping that was cut off has left. */
export async function loadKept({ paths, onProblem }: QemuBuildsOptions): Promise<Kept> {
  const kept: Kept = new Map();
  const isOwn = !(await lstat(paths.qemuBuilds)).isSymbolicLink();
  for (const name of await readdir(paths.qemuBuilds)) {
    const folder = join(paths.qemuBuilds, name);
    if (isOwn && unfinishedPattern.test(name)) await rm(folder, { recursive: true, force: true });
    if (!buildPattern.test(name)) continue;
    const build = await openBuild(paths.qemuBuilds, name).catch((error: unknown) => {
      onProblem("a kept QEMU is damaged", error);
    });
    if (build) kept.set(name, build);
  }
  return kept;
}

/** The installed program, if its files are those that a build was copied from. */
export async function unchanged(
  { paths, program, accept }: QemuBuildsOptions,
  kept: Kept,
): Promise<Installed | undefined> {
  const file = await readJson<SourcesFile>(join(paths.qemuBuilds, sourcesName)).catch(() => undefined);
  if (file === undefined || file.program !== findProgram(program)) return undefined;
  const build = kept.get(file.build);
  if (build === undefined || fingerprintOf(file.paths) !== file.fingerprint) return undefined;
  accept(build.version);
  return { program: build, paths: file.paths, fingerprint: file.fingerprint };
}

/** Copies the installed program and takes it into use; where it cannot be copied, from its place. */
export async function install(options: QemuBuildsOptions, kept: Kept): Promise<Installed> {
  const { program: name, accept, onProblem } = options;
  const path = findProgram(name);
  if (path === undefined) throw new CapsuleError("internal_error", `${name} is not installed`);
  try {
    const installed = await keep(options, kept, path);
    accept(installed.program.version);
    return installed;
  } catch (failure) {
    const fingerprint = fingerprintOf([path]) ?? "";
    const program = await installedProgram(name);
    accept(program.version);
    onProblem("the installed QEMU cannot be kept: what it saves is lost with its next upgrade", failure);
    return { program, paths: [path], fingerprint, failure };
  }
}

/** Copies the program at `path`; again when its files are replaced meanwhile. */
export async function keep({ paths: { qemuBuilds } }: QemuBuildsOptions, kept: Kept, path: string): Promise<Installed> {
  for (let attempt = 1; ; attempt++) {
    const sources = await sourcesOf(path);
    const paths = [path, ...sources.map((source) => source.path)];
    const fingerprint = fingerprintOf(paths);
    const build = await keepBuild(qemuBuilds, sources);
    kept.set(build.build, build);
    if (fingerprint !== undefined && fingerprintOf(paths) === fingerprint) {
      const file: SourcesFile = { program: path, build: build.build, paths, fingerprint };
      await writeJson(join(qemuBuilds, sourcesName), file, { durable: false });
      return { program: build, paths, fingerprint };
    }
    if (attempt === attempts) throw new Error(`${path} keeps changing`);
  }
}
