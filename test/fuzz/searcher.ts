/**
 * The worker of search.ts: mutates inputs and keeps those that reach new blocks of src/agent for further mutation.
 * Reading the coverage counters costs as much as a dozen inputs, so they are read once per batch. The batch grows while
 * there are no new blocks.
 */
import { parentPort, workerData } from "node:worker_threads";
import { Random } from "../conformance/random.ts";
import { checkInput } from "./check-input.ts";
import { Coverage } from "./coverage.ts";
import { epoch } from "./host-end.ts";
import { encode, type FuzzInput, mutate, validFrames } from "./inputs.ts";
import type { Failure, Progress, SearchMessage, SearchOptions } from "./search.ts";

/** Inputs between two readings of the counters. */
const batch = { min: 64, max: 1_024 };
const progressEvery = 50_000;

const { seed, inputs } = workerData as SearchOptions;
const random = new Random(seed);
const coverage = new Coverage("/src/agent/");
const corpus: FuzzInput[] = [validFrames, ...validFrames.map((frame) => [frame]), []];
let runs = 0;

class InputFailure extends Error {
  readonly failure: Failure;

  constructor(failure: Failure) {
    super("an input failed");
    this.failure = failure;
  }
}

async function runInput(input: FuzzInput, isChunked: boolean): Promise<void> {
  const bytes = encode(input, epoch);
  const chunkSeed = isChunked ? random.below(2 ** 31) : undefined;
  try {
    await checkInput(bytes, chunkSeed);
  } catch (error) {
    throw new InputFailure({ bytes: Buffer.from(bytes), seed: chunkSeed ?? 0, error });
  }
}

/** Runs the inputs; returns those that reach new blocks, found by bisection. */
async function runBatch(batch: FuzzInput[]): Promise<FuzzInput[]> {
  for (const [index, input] of batch.entries()) await runInput(input, index % 4 === 0);
  const reached = coverage.newBlocks();
  if (reached.size === 0) return [];
  const half = batch.length >> 1;
  if (half > 0) {
    const found = await runBatch(batch.slice(0, half));
    if (!coverage.hasAll(reached)) found.push(...(await runBatch(batch.slice(half))));
    coverage.accept(reached);
    return found;
  }
  coverage.accept(reached);
  return batch;
}

async function searchAll(): Promise<void> {
  for (const input of corpus) await runInput(input, true);
  coverage.accept(coverage.newBlocks());
  post({ progress: progress() });
  let size = batch.min;
  for (let next = progressEvery; runs < inputs; runs += size) {
    const { blocks } = coverage;
    corpus.push(...(await runBatch(Array.from({ length: size }, () => mutate(corpus, random)))));
    if (runs >= next) {
      post({ progress: progress() });
      next += progressEvery;
    }
    size = coverage.blocks > blocks ? Math.max(size >> 1, batch.min) : Math.min(2 * size, batch.max);
  }
  post({ progress: progress() });
}

function progress(): Progress {
  return { inputs: runs, kept: corpus.length, blocks: coverage.blocks, frames: coverage.callsOf("#frame") };
}

function post(said: SearchMessage): void {
  parentPort?.postMessage(said);
}

// Most inputs end in errors whose stacks are not used. host-decoder.test.ts repeats a failing input with stacks.
Error.stackTraceLimit = 0;
try {
  await searchAll();
} catch (error) {
  if (!(error instanceof InputFailure)) throw error;
  post({ failure: { ...error.failure, error: String(error.failure.error) } });
}
