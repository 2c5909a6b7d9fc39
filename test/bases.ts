/**
 * Booted bases, shared by all servers of the tests. Bases are read-only, so each server gets hard links to the files of
 * the server that booted first.
 */
import { execFile } from "node:child_process";
import { randomUUID } from "node:crypto";
import { mkdir, readdir, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);

/** Links the most recently used base of `store` into a data folder without bases. */
export async function borrowBase(store: string, dataDir: string): Promise<void> {
  const newest = (await basesOf(store)).at(-1);
  if (newest !== undefined) await place(join(store, newest), join(dataDir, "bases", newest));
}

/** Links new bases of a data folder into the store. */
export async function lendBases(dataDir: string, store: string): Promise<void> {
  const known = (await basesOf(store)).map(shapeOf);
  const made = (await basesOf(join(dataDir, "bases"))).filter((key) => !known.includes(shapeOf(key)));
  for (const key of made) await place(join(dataDir, "bases", key), join(store, key));
}

/** Without the end that tells its content: one base of a shape is enough. */
function shapeOf(key: string): string {
  return key.replace(/-[0-9a-f]{8}$/, "");
}

/** Keys in the order of their last use. */
async function basesOf(folder: string): Promise<string[]> {
  const keys = await readdir(folder).catch(() => []);
  const used = await Promise.all(keys.map(async (key) => ({ key, usedMs: (await stat(join(folder, key))).mtimeMs })));
  return used.sort((a, b) => a.usedMs - b.usedMs).map(({ key }) => key);
}

/** Atomic; does nothing when another test run has placed the same base first. */
async function place(from: string, to: string): Promise<void> {
  const half = join(to, "../..", `half-base-${randomUUID()}`);
  await mkdir(join(to, ".."), { recursive: true, mode: 0o700 });
  try {
    // Hard links do not work across file systems.
    await run("cp", ["-al", `${from}/.`, half]).catch(() => run("cp", ["-a", "--sparse=always", `${from}/.`, half]));
    await rename(half, to);
  } catch {
    await rm(half, { recursive: true, force: true });
  }
}
