/**
 * Copies of files that may have holes: memory files, and disk layers of which the guest has discarded blocks. Node's copyFile
 * fills the holes where the file system shares no blocks.
 */
import { open, stat } from "node:fs/promises";
import { copyDeadlineMs } from "./copy-deadline.ts";
import { runHelper } from "./oom-score.ts";

/** Bytes that a file occupies on disk, without holes. */
export async function allocatedBytes(path: string): Promise<number> {
  return (await stat(path)).blocks * 512;
}

/** Copies `from` to the new file `to`, which has the same holes and shares blocks where the file system can. `signal`: see runHelper. */
export async function copySparse(from: string, to: string, signal?: AbortSignal): Promise<void> {
  const created = await open(to, "wx", 0o600);
  await created.close();
  const timeout = copyDeadlineMs(await allocatedBytes(from));
  await runHelper("cp", ["--reflink=auto", "--sparse=auto", "--", from, to], { timeout, signal });
}
