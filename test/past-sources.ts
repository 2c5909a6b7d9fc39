/** Sources of an earlier commit, from the repository's history, with the packages that they need. */
import { type ExecFileOptions, execFile, spawnSync } from "node:child_process";
import { readFile, rm, symlink } from "node:fs/promises";
import { join, resolve } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);
const repository = resolve(import.meta.dirname, "..");
const bufferBytes = 64 << 20;

/** Whether the history here reaches back to it. */
export function hasCommit(commit: string): boolean {
  return spawnSync("git", ["-C", repository, "cat-file", "-e", `${commit}^{commit}`]).status === 0;
}

/** Writes them into a folder that is there. This version's packages are linked if the lockfiles are equal, else the commit's installed. */
export async function unpackCommit(commit: string, folder: string): Promise<void> {
  const archive = join(folder, "sources.tar");
  await run("git", ["-C", repository, "archive", "--output", archive, commit]);
  await run("tar", ["-xf", archive, "-C", folder]);
  await rm(archive);
  const [now, then] = await Promise.all([repository, folder].map((each) => readFile(join(each, "package-lock.json"))));
  if (now!.equals(then!)) await symlink(join(repository, "node_modules"), join(folder, "node_modules"));
  else await run("npm", ["ci", "--no-audit", "--no-fund", "--loglevel=error"], within(folder));
}

/** Runs a program of theirs. */
export function within(folder: string): ExecFileOptions & { encoding: "utf8" } {
  const { CAPSULE_DATA: _, ...env } = process.env;
  return { cwd: folder, env, maxBuffer: bufferBytes, encoding: "utf8" };
}
