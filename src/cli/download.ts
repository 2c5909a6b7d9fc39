/**
 * Files and folders out of a capsule. File names come from the capsule and are not trusted: every name is checked,
 * each entry lies in a folder that this copy has made or found, and links are created last, so that nothing is written
 * through a link or outside of the target.
 */
import { randomBytes } from "node:crypto";
import { createWriteStream } from "node:fs";
import { chmod, lstat, mkdir, rename, rm, stat, symlink } from "node:fs/promises";
import { basename, dirname, join, normalize, posix } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { type Capsule, type FileEntry, hasCode } from "../sdk/sdk.ts";
import { TreeReceiver } from "./download-tree.ts";
import { Failure } from "./failures.ts";
import { keptMode, modeOf, modesOfCopy } from "./modes.ts";
import { onDisk, readPaths, scriptWord } from "./names.ts";
import type { Progress, Tally } from "./progress.ts";
import { note, print, printable } from "./screen.ts";
import { membersOf } from "./tar-reader.ts";

export async function downloadToStandardOutput(capsule: Capsule, source: string, progress: Progress, tally: Tally) {
  for await (const chunk of progress.counted(await bytesOf(capsule, source))) await print(chunk);
  tally.files++;
}

/**
 * Names the copy as `cp -a` does: inside an existing folder, else by the given name. `deepest`: depth limit of a
 * listing.
 */
export async function download(
  { capsule, deepest }: { capsule: Capsule; deepest: number },
  source: string,
  target: string,
  progress: Progress,
  tally: Tally,
): Promise<void> {
  const bare = withoutSlash(source);
  const entry = await capsule.files.stat(bare);
  if (entry === undefined) throw new Failure(`there is no ${source} in the capsule`);
  const there = await stat(onDisk(target)).catch(() => undefined);
  if (there === undefined && target.endsWith("/") && entry.type !== "directory")
    throw new Failure(`there is no folder ${target} here`);
  const place = there?.isDirectory() ? join(target, basename(bare) || capsule.id) : withoutSlash(normalize(target));
  if (entry.type !== "directory") {
    progress.expects(entry.size);
    const mode = entry.type === "symlink" ? await modeBehind(capsule, bare) : modeOf(entry);
    await receive(capsule, bare, place, mode, progress, tally);
    return;
  }
  await mkdir(onDisk(dirname(place)), { recursive: true });
  if (await receiveArchive(capsule, bare, place, progress, tally)) return;
  const entries = await capsule.files.list(bare, { depth: deepest });
  await receiveTree(capsule, { path: bare, mode: modeOf(entry) }, place, entries, progress, tally);
}

/** As one archive. False: the agent, in memory since an earlier release, makes none. */
async function receiveArchive(
  capsule: Capsule,
  source: string,
  place: string,
  progress: Progress,
  tally: Tally,
): Promise<boolean> {
  let archive: AsyncIterable<Uint8Array>;
  try {
    archive = (await capsule.files.archive(source, { base: source })) as unknown as AsyncIterable<Uint8Array>;
  } catch (error) {
    if (!hasCode(error, "conflict")) throw error;
    return false;
  }
  const receiver = new TreeReceiver(place, progress, tally, makeFolder);
  for await (const member of membersOf(archive)) await receiver.add(member);
  await receiver.end();
  return true;
}

function withoutSlash(path: string): string {
  return path.replace(/(.)\/+$/, "$1");
}

async function receiveTree(
  capsule: Capsule,
  folder: { path: string; mode: number },
  place: string,
  entries: FileEntry[],
  progress: Progress,
  tally: Tally,
): Promise<void> {
  const links: { to: string; target: string }[] = [];
  /** Folder → its mode, parents first. */
  const modes = new Map<string, number>();
  const receiveFolder = async (to: string, mode: number) => {
    await makeFolder(to);
    modes.set(to, mode);
    tally.directories++;
  };
  for (const { type, size } of entries) if (type === "file") progress.expects(size);
  await receiveFolder(place, folder.mode);
  for (const entry of entries) {
    const to = join(place, ...segmentsBelow(folder.path, entry.path));
    if (!modes.has(dirname(to))) throw new Failure(`the capsule lists ${printable(entry.path)}, but not its folder`);
    if (entry.type === "symlink") links.push({ to, target: entry.symlinkTarget ?? "" });
    else if (entry.type === "directory") await receiveFolder(to, modeOf(entry));
    else if (entry.permissions.startsWith("-")) {
      await receive(capsule, entry.path, to, modeOf(entry), progress, tally);
    } else note(`capsule cp: ${printable(entry.path)} is not a file, folder or link, and is skipped`);
  }
  for (const { to, target } of links) {
    await rm(onDisk(to), { force: true });
    await symlink(onDisk(target), onDisk(to));
    tally.links++;
  }
  // Last, and children first: a folder may be one that its owner cannot write to or search.
  for (const [path, mode] of [...modes].reverse()) await chmod(onDisk(path), mode);
}

/** The path below the folder, split. Throws when the path is not below it. */
export function segmentsBelow(folder: string, path: string): string[] {
  const prefix = folder === "/" ? "/" : `${folder}/`;
  const segments = path.startsWith(prefix) ? path.slice(prefix.length).split("/") : [];
  const isBad = (name: string) => name === "" || name === "." || name === ".." || name.includes("\0");
  if (segments.length === 0 || segments.some(isBad) || posix.normalize(path) !== path)
    throw new Failure(`the capsule lists ${printable(JSON.stringify(path))}, which is not in ${folder}`);
  return segments;
}

/** An existing path must itself be a folder: a link would lead outside of the target. */
async function makeFolder(path: string): Promise<void> {
  const there = await lstat(onDisk(path)).catch(() => undefined);
  if (there === undefined) await mkdir(onDisk(path), { mode: modesOfCopy.folder });
  else if (!there.isDirectory()) throw new Failure(`${path} exists and is not a folder`);
}

/** Written to a temporary name, then renamed: a link at `to` is replaced, not followed. */
async function receive(
  capsule: Capsule,
  from: string,
  to: string,
  mode: number,
  progress: Progress,
  tally: Tally,
): Promise<void> {
  progress.begins(from);
  const half = onDisk(join(dirname(to), `.${randomBytes(6).toString("hex")}.part`));
  try {
    const source = Readable.from(progress.counted(await bytesOf(capsule, from)), { objectMode: false });
    await pipeline(source, createWriteStream(half, { flags: "wx", mode: modesOfCopy.file }));
    await chmod(half, mode);
    await rename(half, onDisk(to));
  } catch (error) {
    await rm(half, { force: true });
    throw error;
  }
  tally.files++;
}

async function bytesOf(capsule: Capsule, path: string): Promise<AsyncIterable<Uint8Array>> {
  return (await capsule.files.readStream(path)) as unknown as AsyncIterable<Uint8Array>;
}

/** The mode of the file that a link leads to; a listing has the link's own. */
async function modeBehind(capsule: Capsule, path: string): Promise<number> {
  const script = `${readPaths}stat -L -c %a -- "$1"`;
  const { stdout } = await capsule.exec("sh", ["-c", script, "sh", scriptWord(path)]);
  return /^[0-7]{1,4}\n$/.test(stdout) ? keptMode(Number.parseInt(stdout, 8), false) : modesOfCopy.file;
}
