/**
 * Runs the search for failing inputs in a worker thread. The test runner does not track promises there, which would
 * cost more than the inputs, and the coverage contains little other code.
 */
import { once } from "node:events";
import { Worker } from "node:worker_threads";

export interface SearchOptions {
  seed: number;
  inputs: number;
}

/** Messages of the worker. */
export type SearchMessage = { progress: Progress } | { failure: Failure };

export interface Progress {
  inputs: number;
  kept: number;
  /** Reached blocks of code; a block counts once for every power of two of its runs per reading of the counters. */
  blocks: number;
  frames: number;
}

/** The failing bytes, and the seed of their chunks. */
export interface Failure {
  bytes: Uint8Array;
  seed: number;
  error: unknown;
}

/** Resolves with the last message, at the end of the search or when the signal fires. */
export async function search(
  options: SearchOptions,
  onProgress: (progress: Progress) => void,
  signal: AbortSignal,
): Promise<SearchMessage> {
  const worker = new Worker(new URL("./searcher.ts", import.meta.url), { workerData: options });
  signal.addEventListener("abort", () => void worker.terminate(), { once: true });
  let last: SearchMessage | undefined;
  worker.on("message", (message: SearchMessage) => {
    last = message;
    if ("progress" in message) onProgress(message.progress);
  });
  await once(worker, "exit"); // rejects with an exception of the worker
  if (last === undefined) throw new Error("the search ended without a message");
  return last;
}
