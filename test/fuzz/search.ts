/**
 * The search for stories that break the host's reading of a guest, in a thread of its own: there the test runner does not
 * follow every promise, which costs more than the stories, and the coverage is of little else than what is searched.
 */
import { once } from "node:events";
import { Worker } from "node:worker_threads";

export interface SearchOptions {
  seed: number;
  stories: number;
}

/** What the searching thread says: how far it has come, and what failed. */
export type Said = { progress: Progress } | { failure: Failure };

export interface Progress {
  told: number;
  kept: number;
  /** Blocks of code that were reached, each counted for every power of two of its runs in one look. */
  blocks: number;
  frames: number;
}

/** Bytes that did it, and the seed of the pieces that they came in. */
export interface Failure {
  bytes: Uint8Array;
  seed: number;
  error: unknown;
}

/** Resolves with how it ended, which the signal may bring about; `onProgress` is told now and then. */
export async function search(
  options: SearchOptions,
  onProgress: (progress: Progress) => void,
  signal: AbortSignal,
): Promise<Said> {
  const worker = new Worker(new URL("./searcher.ts", import.meta.url), { workerData: options });
  signal.addEventListener("abort", () => void worker.terminate(), { once: true });
  let last: Said | undefined;
  worker.on("message", (said: Said) => {
    last = said;
    if ("progress" in said) onProgress(said.progress);
  });
  await once(worker, "exit"); // throws what the thread did
  if (last === undefined) throw new Error("the search ended without a word");
  return last;
}
