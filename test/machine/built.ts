/** Built disks and programs, in folders named by the key of what they are made of; of each kind the last few used are kept. */
import { mkdir, readdir, rm, stat, utimes } from "node:fs/promises";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { exists, publish } from "../../guest/image/parts.ts";
import { waitFor } from "../wait-for.ts";

/** One for each shape. */
const keptOfAKind = 4;
/** A machine stands on those it was made of, and a run of many power cuts takes hours. */
const keptMs = 21_600_000;
const lockDeadlineMs = 1_800_000;
const sqliteBusy = 5;

/** Resolves with the folder of `kind` and `key`; `fill` makes it when it is not there. One at a time of all processes. */
export async function built(
  machines: string,
  kind: "emulator" | "root" | "tree" | "data",
  key: string,
  fill: (scratch: string) => Promise<void>,
): Promise<string> {
  const folder = join(machines, `${kind}-${key.slice(0, 16)}`);
  await mkdir(machines, { recursive: true });
  using _lock = await lock(join(machines, "lock"));
  for (const name of await readdir(machines)) {
    if (name.startsWith(".new-")) await rm(join(machines, name), { recursive: true, force: true }); // of a run that was killed
  }
  if (!(await exists(folder))) await publish(folder, fill);
  await utimes(folder, new Date(), new Date());
  const names = (await readdir(machines)).filter((name) => name.startsWith(`${kind}-`));
  const used = await Promise.all(
    names.map(async (name) => ({ name, usedMs: (await stat(join(machines, name))).mtimeMs })),
  );
  const outdated = used.sort((a, b) => b.usedMs - a.usedMs).slice(keptOfAKind);
  for (const { name } of outdated.filter(({ usedMs }) => Date.now() - usedMs > keptMs))
    await rm(join(machines, name), { recursive: true, force: true });
  return folder;
}

/** Held until it is disposed of or the process ends: an exclusive transaction, like the server's lock on its data folder. */
async function lock(path: string): Promise<Disposable> {
  const database = new DatabaseSync(path, { timeout: 0 });
  const isLocked = () => {
    try {
      database.exec("BEGIN EXCLUSIVE");
      return true;
    } catch (error) {
      if ((error as { errcode?: number }).errcode === sqliteBusy) return false;
      throw error;
    }
  };
  try {
    await waitFor(`the lock ${path}`, isLocked, { deadlineMs: lockDeadlineMs, longestPauseMs: 500 });
  } catch (error) {
    database.close();
    throw error;
  }
  return { [Symbol.dispose]: () => database.close() };
}
