/**
 * Booted bases, shared by all servers that tests start: nobody writes to a base, so each server gets links to the files
 * of the one that booted first.
 */
import { execFile } from "node:child_process";
import { randomUUID } from "node:crypto";
import { mkdir, readdir, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);

/** The base of `store` that was used last, into a data folder that has none. */
export async function borrowBase(store: string, dataDir: string): Promise<void> {
  const newest = (await basesOf(store)).at(-1);
  if (newest !== undefined) await place(join(store, newest), join(dataDir, "bases", newest));
}

/** What a data folder has booted, to the store. */
export async function lendBases(dataDir: string, store: string): Promise<void> {
  const known = await basesOf(store);
  const made = (await basesOf(join(dataDir, "bases"))).filter((key) => !known.includes(key));
  for (const key of made) await place(join(dataDir, "bases", key), join(store, key));
}

/** Keys, the one used last at the end. */
async function basesOf(folder: string): Promise<string[]> {
  const keys = await readdir(folder).catch(() => []);
  const used = await Promise.all(keys.map(async (key) => ({ key, usedMs: (await stat(join(folder, key))).mtimeMs })));
  return used.sort((a, b) => a.usedMs - b.usedMs).map(({ key }) => key);
}

/** Appears in one piece, or not at all when another test run was quicker. */
async function place(from: string, to: string): Promise<void> {
  const half = join(to, "../..", `half-base-${randomUUID()}`);
  await mkdir(join(to, ".."), { recursive: true, mode: 0o700 });
  try {
    // Links do not reach another file system.
    await run("cp", ["-al", `${from}/.`, half]).catch(() => run("cp", ["-a", "--sparse=always", `${from}/.`, half]));
    await rename(half, to);
  } catch {
    await rm(half, { recursive: true, force: true });
  }
}
