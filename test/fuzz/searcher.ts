/**
 * The searching thread (search.ts): stories that a guest tells are mutated, and those that reach a block of src/agent that
 * none reached before are kept to be mutated further. A look at the coverage costs as much as a dozen stories, so there is
 * one for many of them; the more, the longer there was no news.
 */
import { parentPort, workerData } from "node:worker_threads";
import { Random } from "../conformance/random.ts";
import { Coverage } from "./coverage.ts";
import { hear } from "./hearing.ts";
import { epoch } from "./line.ts";
import type { Failure, Progress, Said, SearchOptions } from "./search.ts";
import { encode, mutate, type Story, truths } from "./story.ts";

/** Told between two looks. */
const batch = { least: 64, most: 1_024 };
const progressEvery = 50_000;

const { seed, stories } = workerData as SearchOptions;
const random = new Random(seed);
const coverage = new Coverage("/src/agent/");
const corpus: Story[] = [truths, ...truths.map((word) => [word]), []];
let told = 0;

class Broken extends Error {
  readonly failure: Failure;

  constructor(failure: Failure) {
    super("a story broke it");
    this.failure = failure;
  }
}

async function tell(story: Story, isInPieces: boolean): Promise<void> {
  const bytes = encode(story, epoch);
  const ofPieces = isInPieces ? random.below(2 ** 31) : undefined;
  try {
    await hear(bytes, ofPieces);
  } catch (error) {
    throw new Broken({ bytes: Buffer.from(bytes), seed: ofPieces ?? 0, error });
  }
}

/** Tells the stories; those of them that reach something new, found by halving. */
async function tellAll(tried: Story[]): Promise<Story[]> {
  for (const [index, story] of tried.entries()) await tell(story, index % 4 === 0);
  const news = coverage.news();
  if (news.size === 0) return [];
  const half = tried.length >> 1;
  if (half > 0) {
    const found = await tellAll(tried.slice(0, half));
    if (!coverage.knows(news)) found.push(...(await tellAll(tried.slice(half))));
    coverage.accept(news);
    return found;
  }
  coverage.accept(news);
  return tried;
}

async function searchAll(): Promise<void> {
  for (const story of corpus) await tell(story, true);
  coverage.accept(coverage.news());
  say({ progress: progress() });
  let size = batch.least;
  for (let next = progressEvery; told < stories; told += size) {
    const { blocks } = coverage;
    corpus.push(...(await tellAll(Array.from({ length: size }, () => mutate(corpus, random)))));
    if (told >= next) {
      say({ progress: progress() });
      next += progressEvery;
    }
    size = coverage.blocks > blocks ? Math.max(size >> 1, batch.least) : Math.min(2 * size, batch.most);
  }
  say({ progress: progress() });
}

function progress(): Progress {
  return { told, kept: corpus.length, blocks: coverage.blocks, frames: coverage.callsOf("#frame") };
}

function say(said: Said): void {
  parentPort?.postMessage(said);
}

// Most stories end in errors, whose stacks nobody reads; what fails is told again with them (host-decoder.test.ts).
Error.stackTraceLimit = 0;
try {
  await searchAll();
} catch (error) {
  if (!(error instanceof Broken)) throw error;
  say({ failure: { ...error.failure, error: String(error.failure.error) } });
}
