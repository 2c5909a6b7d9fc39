/** Files and folders of this machine into a capsule. Links stay links; modes are kept. */
import { createReadStream } from "node:fs";
import { lstat, readdir, readlink, stat } from "node:fs/promises";
import { basename, join, posix } from "node:path";
import type { Capsule } from "../sdk/sdk.ts";
import { Failure } from "./failures.ts";
import type { Progress, Tally } from "./progress.ts";
import { note, printable } from "./screen.ts";

const newFileMode = 0o644;
/** Arguments of one chmod. */
const pathsPerCommand = 200;
const readBytes = 256 * 1024;

export async function uploadStandardInput(capsule: Capsule, target: string, progress: Progress, tally: Tally) {
  if (target.endsWith("/")) throw new Failure(`${target} is a folder; add a file name`);
  await capsule.files.write(target, progress.counted(process.stdin));
  tally.files++;
}

/** Names the copy as `cp -a` does: inside an existing folder, else by the given name. */
export async function upload(capsule: Capsule, source: string, target: string, progress: Progress, tally: Tally) {
  const found = await stat(source).catch(() => {
    throw new Failure(`there is no file ${source} here`);
  });
  const place = await placeFor(capsule, source, target, found.isDirectory());
  if (!found.isDirectory()) {
    progress.expects(found.size);
    await send(capsule, source, place, progress, tally);
    if ((found.mode & 0o777) !== newFileMode) await setModes(capsule, new Map([[found.mode & 0o777, [place]]]));
    return;
  }
  const plan = await survey(source, place);
  for (const { sizeBytes } of plan.files) progress.expects(sizeBytes);
  for (const path of plan.directories) {
    await capsule.files.mkdir(path);
    tally.directories++;
  }
  for (const { from, to } of plan.files) await send(capsule, from, to, progress, tally);
  for (const { to, target: pointsTo } of plan.links) {
    await run(capsule, "ln", ["-sfn", "--", pointsTo, to]);
    tally.links++;
  }
  await setModes(capsule, plan.modes);
}

async function placeFor(capsule: Capsule, source: string, target: string, isFolder: boolean): Promise<string> {
  const name = basename(source === "." || source === ".." ? join(process.cwd(), source) : source);
  const there = await capsule.files.stat(target === "/" ? target : target.replace(/\/+$/, ""));
  const isThereFolder = there?.type === "directory" || (there?.type === "symlink" && target.endsWith("/"));
  if (isThereFolder) return posix.join(target, name);
  if (isFolder && there !== undefined) throw new Failure(`${target} exists and is not a folder`);
  if (!isFolder && target.endsWith("/")) throw new Failure(`there is no folder ${target} in the capsule`);
  return posix.normalize(target).replace(/(.)\/$/, "$1");
}

interface Plan {
  /** Parents before children. */
  directories: string[];
  files: { from: string; to: string; sizeBytes: number }[];
  links: { to: string; target: string }[];
  /** Mode → paths to set it on. */
  modes: Map<number, string[]>;
}

/** Links are not followed: the walk is finite and stays below the source. */
async function survey(source: string, place: string): Promise<Plan> {
  const plan: Plan = { directories: [place], files: [], links: [], modes: new Map() };
  const walk = async (from: string, to: string): Promise<void> => {
    for (const name of (await readdir(from)).sort()) {
      const [inner, outer] = [join(from, name), posix.join(to, name)];
      const found = await lstat(inner);
      const mode = found.mode & 0o777;
      if (found.isDirectory()) {
        plan.directories.push(outer);
        await walk(inner, outer);
      } else if (found.isSymbolicLink()) plan.links.push({ to: outer, target: await readlink(inner) });
      else if (found.isFile()) {
        plan.files.push({ from: inner, to: outer, sizeBytes: found.size });
        if (mode !== newFileMode) plan.modes.set(mode, [...(plan.modes.get(mode) ?? []), outer]);
      } else note(`capsule cp: ${printable(inner)} is not a file, folder or link, and is skipped`);
    }
  };
  await walk(source, place);
  return plan;
}

async function send(capsule: Capsule, from: string, to: string, progress: Progress, tally: Tally): Promise<void> {
  progress.begins(from);
  await capsule.files.write(to, progress.counted(createReadStream(from, { highWaterMark: readBytes })));
  tally.files++;
}

async function setModes(capsule: Capsule, modes: Map<number, string[]>): Promise<void> {
  for (const [mode, paths] of modes) {
    for (let at = 0; at < paths.length; at += pathsPerCommand) {
      await run(capsule, "chmod", [mode.toString(8), "--", ...paths.slice(at, at + pathsPerCommand)]);
    }
  }
}

async function run(capsule: Capsule, cmd: string, args: string[]): Promise<void> {
  const { exitCode, stderr } = await capsule.exec(cmd, args);
  if (exitCode !== 0) throw new Failure(`${cmd} in the capsule ended with ${exitCode}: ${stderr.trim()}`);
}
