/** Built disks and programs, in folders named by the key of what they are made of; of each kind the last few used are kept. */
import { readdir, rm, stat, utimes } from "node:fs/promises";
import { join } from "node:path";
import { exists, publish } from "../../guest/image/parts.ts";

/** One for each shape, and a machine that is up may still stand on one of a few edits ago. */
const keptOfAKind = 4;

/** Resolves with the folder of `kind` and `key`; `fill` makes it when it is not there. */
export async function built(
  machines: string,
  kind: "emulator" | "root" | "tree" | "data",
  key: string,
  fill: (scratch: string) => Promise<void>,
): Promise<string> {
  const folder = join(machines, `${kind}-${key.slice(0, 16)}`);
  if (!(await exists(folder))) await publish(folder, fill);
  await utimes(folder, new Date(), new Date());
  const names = (await readdir(machines)).filter((name) => name.startsWith(`${kind}-`));
  const used = await Promise.all(
    names.map(async (name) => ({ name, usedMs: (await stat(join(machines, name))).mtimeMs })),
  );
  const outdated = used.sort((a, b) => b.usedMs - a.usedMs).slice(keptOfAKind);
  for (const { name } of outdated) await rm(join(machines, name), { recursive: true, force: true });
  return folder;
}
