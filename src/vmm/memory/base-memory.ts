/**
 * Base memory files, which VMs map privately: sparse, as large as the VM's memory, never written again once published. A new
 * one is an old one with a diff merged in.
 */
import { open, rm, stat } from "node:fs/promises";
import { copyDeadlineMs } from "../copy-deadline.ts";
import { runHelper } from "../oom-score.ts";
import { copySparse } from "../sparse-copy.ts";
import { readDiff } from "./diff-format.ts";
import { forEachPiece } from "./diff-reader.ts";
import { writeFully } from "./diff-writer.ts";

import { pageBytes } from "./pagemap.ts";

/**
 * Writes `base` with `diff` merged in to the new file `out`, durably. Pages of zeros become holes; unchanged pages share blocks
 * with `base` where the file system supports it. Leaves no file when it fails, and when the signal fires.
 */
export async function flattenMemory(base: string, diff: string, out: string, signal?: AbortSignal): Promise<void> {
  const { size } = await stat(base);
  try {
    await copySparse(base, out, signal);
    await using diffFile = await open(diff, "r");
    await using outFile = await open(out, "r+");
    let hasNewZeros = false;
    await forEachPiece(diffFile, await readDiff(diffFile, size), (bytes, page, isZero) => {
      signal?.throwIfAborted();
      hasNewZeros ||= isZero;
      return writeFully(outFile, bytes, page * pageBytes);
    });
    if (hasNewZeros) await runHelper("fallocate", ["--dig-holes", out], { timeout: copyDeadlineMs(size), signal });
    await outFile.sync();
  } catch (error) {
    await rm(out, { force: true });
    throw error;
  }
}
