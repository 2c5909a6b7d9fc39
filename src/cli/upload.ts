/**
 * Files and folders of this machine into a capsule. Links stay links; modes are kept. The service gives a new file mode
 * 0644 and leaves an existing one its own, so files are made empty and given their mode before their content is sent.
 */
import { createReadStream, type Stats } from "node:fs";
import { lstat, readdir, readlink, stat } from "node:fs/promises";
import { basename, join, posix } from "node:path";
import { type Capsule, type FileEntry, hasCode, nameFromBytes } from "../sdk/sdk.ts";
import { Failure } from "./failures.ts";
import { keptMode, newFileMode } from "./modes.ts";
import { onDisk, readPaths, scriptWord } from "./names.ts";
import type { Progress, Tally } from "./progress.ts";
import { note, printable } from "./screen.ts";
import { type TarEntry, tarOf } from "./tar-writer.ts";

/** Paths in the arguments of one command. */
const pathsPerCommand = 200;
const readBytes = 256 * 1024;

export async function uploadStandardInput(capsule: Capsule, target: string, progress: Progress, tally: Tally) {
  if (target.endsWith("/")) throw new Failure(`${target} is a folder; add a file name`);
  await capsule.files.write(target, progress.counted(process.stdin));
  tally.files++;
}

/** Names the copy as `cp -a` does: inside an existing folder, else by the given name. */
export async function upload(capsule: Capsule, source: string, target: string, progress: Progress, tally: Tally) {
  const found = await stat(onDisk(source)).catch(() => {
    throw new Failure(`there is no file ${source} here`);
  });
  const { place, isNew } = await placeFor(capsule, source, target, found.isDirectory());
  if (!found.isDirectory()) {
    const mode = keptMode(found.mode, false);
    progress.expects(found.size);
    if (isNew && mode !== newFileMode) await capsule.files.write(place, ""); // the service says why it cannot be made
    await send(capsule, isNew, [{ from: source, to: place, mode, mtimeMs: found.mtimeMs }], progress, tally);
    return;
  }
  const plan = await survey(source, place);
  for (const { sizeBytes } of plan.files) progress.expects(sizeBytes);
  try {
    await sendTree(capsule, place, plan, progress);
    tally.directories += plan.directories.length;
    tally.files += plan.files.length;
    tally.links += plan.links.length;
    return;
  } catch (error) {
    // An agent that is in memory since an earlier release takes no archives, and says so before it gets any.
    if (!hasCode(error, "conflict")) throw error;
  }
  for (const { to } of plan.directories) {
    await capsule.files.mkdir(to);
    tally.directories++;
  }
  // With five digits chmod takes away a setgid bit that the folder has from its parent.
  await inBatches(plan.directories, (mode, paths) => run(capsule, setMode, [octal(mode, 5), ...paths]));
  await send(capsule, isNew, plan.files, progress, tally);
  for (const { to, target: pointsTo } of plan.links) {
    await run(capsule, 'ln -sfn -- "$1" "$2"', [pointsTo, to]);
    tally.links++;
  }
}

/** As one archive, into the folder that the tree stands in. */
async function sendTree(capsule: Capsule, place: string, plan: Plan, progress: Progress): Promise<void> {
  const into = posix.dirname(place);
  await capsule.files.mkdir(into);
  const nameOf = (path: string) => path.slice(into === "/" ? 1 : into.length + 1);
  const entries: TarEntry[] = [
    ...plan.directories.map(({ to, ...entry }) => ({ ...entry, kind: "directory" as const, name: nameOf(to) })),
    ...plan.files.map(({ to, ...entry }) => ({ ...entry, kind: "file" as const, name: nameOf(to) })),
    ...plan.links.map(({ to, ...entry }) => ({ ...entry, kind: "symlink" as const, name: nameOf(to), mode: 0o777 })),
  ];
  const onFile = ({ from = "" }: TarEntry) => progress.begins(from);
  await capsule.files.extract(into, tarOf(entries, { onFile, onBytes: (count) => progress.moved(count) }));
}

interface Place {
  place: string;
  /** Nothing is there. */
  isNew: boolean;
}

/** In a folder. */
export function nameOfCopy(source: string): string {
  return basename(source === "." || source === ".." ? join(process.cwd(), source) : source);
}

export async function statIn(capsule: Capsule, target: string): Promise<FileEntry | undefined> {
  return await capsule.files.stat(target.replace(/(.)\/+$/, "$1"));
}

/** A link with a slash after it leads to one, or the service says that it does not. */
export function isFolderIn(there: FileEntry | undefined, target: string): boolean {
  return there?.type === "directory" || (there?.type === "symlink" && target.endsWith("/"));
}

async function placeFor(capsule: Capsule, source: string, target: string, isFolder: boolean): Promise<Place> {
  const there = await statIn(capsule, target);
  if (isFolderIn(there, target)) {
    const place = posix.join(target, nameOfCopy(source));
    return { place, isNew: (await capsule.files.stat(place)) === undefined };
  }
  if (isFolder && there !== undefined) throw new Failure(`${target} exists and is not a folder`);
  if (!isFolder && target.endsWith("/")) throw new Failure(`there is no folder ${target} in the capsule`);
  return { place: posix.normalize(target).replace(/(.)\/$/, "$1"), isNew: there === undefined };
}

interface Entry {
  to: string;
  mode: number;
  mtimeMs: number;
}

interface SourceFile extends Entry {
  from: string;
}

interface Plan {
  /** Parents before children. */
  directories: Entry[];
  files: (SourceFile & { sizeBytes: number })[];
  links: { to: string; target: string; mtimeMs: number }[];
}

/** Links are not followed: the walk is finite and stays below the source. */
async function survey(source: string, place: string): Promise<Plan> {
  const plan: Plan = { directories: [], files: [], links: [] };
  const walk = async (from: string, to: string, { mode, mtimeMs }: Stats): Promise<void> => {
    plan.directories.push({ to, mode: keptMode(mode, true), mtimeMs });
    const names = (await readdir(onDisk(from), { encoding: "buffer" })).map(nameFromBytes);
    for (const name of names.sort()) {
      const [inner, outer] = [join(from, name), posix.join(to, name)];
      const found = await lstat(onDisk(inner));
      if (found.isDirectory()) await walk(inner, outer, found);
      else if (found.isSymbolicLink())
        plan.links.push({
          to: outer,
          target: nameFromBytes(await readlink(onDisk(inner), "buffer")),
          mtimeMs: found.mtimeMs,
        });
      else if (found.isFile()) {
        const mode = keptMode(found.mode, false);
        plan.files.push({ from: inner, to: outer, mode, mtimeMs: found.mtimeMs, sizeBytes: found.size });
      } else note(`capsule cp: ${printable(inner)} is not a file, folder or link, and is skipped`);
    }
  };
  await walk(source, place, await stat(onDisk(source)));
  return plan;
}

/** `isNew`: none of the targets exists, so that those of mode 0644 need no preparation. */
async function send(
  capsule: Capsule,
  isNew: boolean,
  files: readonly SourceFile[],
  progress: Progress,
  tally: Tally,
): Promise<void> {
  const sendAll = async (batch: readonly SourceFile[]) => {
    for (const { from, to } of batch) {
      progress.begins(from);
      await capsule.files.write(to, progress.counted(createReadStream(onDisk(from), { highWaterMark: readBytes })));
      tally.files++;
    }
  };
  await inBatches(files, async (mode, paths, batch) => {
    if (!isNew || mode !== newFileMode) await run(capsule, prepare, [octal(mode, 4), ...paths]);
    await sendAll(batch);
  });
}

/** Gives the paths the mode that stands before them. */
const setMode = 'mode=$1; shift; chmod "$mode" -- "$@"';
/** Makes those that do not exist as files before. */
const prepare = `mode=$1; shift; umask 077; for file; do [ -e "$file" ] || : > "$file" || exit; done; chmod "$mode" -- "$@"`;

/** Entries of one mode at a time, and no more than fit in the arguments of a command. */
async function inBatches<T extends Entry>(
  entries: readonly T[],
  work: (mode: number, paths: string[], batch: readonly T[]) => Promise<void>,
): Promise<void> {
  for (const [mode, group] of Map.groupBy(entries, (entry) => entry.mode)) {
    for (let at = 0; at < group.length; at += pathsPerCommand) {
      const batch = group.slice(at, at + pathsPerCommand);
      const paths = batch.map(({ to }) => to);
      await work(mode, paths, batch);
    }
  }
}

function octal(mode: number, digits: number): string {
  return mode.toString(8).padStart(digits, "0");
}

/** A script of the shell in the capsule, with paths as its arguments. */
async function run(capsule: Capsule, script: string, paths: string[]): Promise<void> {
  const { exitCode, stderr } = await capsule.exec("sh", ["-c", readPaths + script, "sh", ...paths.map(scriptWord)]);
  if (exitCode !== 0) throw new Failure(`a command in the capsule ended with ${exitCode}: ${stderr.trim()}`);
}
