/** How often things go wrong in a schedule. */
import { type Fates, kind } from "./statements.ts";

export interface Faults {
  fates: Fates;
  /** Probabilities, for each action of a host, for each request to a peer, and for each step. */
  host: number;
  peer: number;
  step: number;
  /** For each request to the bucket. */
  bucket: number;
  /** For each release and acquire that is committed: its host dies before anything else. */
  move: number;
}

export const none: Faults = { fates: kind, host: 0, peer: 0, step: 0, bucket: 0, move: 0 };

/** Schedules of seeds from here on have a bucket. */
export const bucketSeeds = 2 ** 31;
const kinds = 6;

/** Every sixth of these drains hosts. */
export function isDrainSeed(seed: number): boolean {
  return seed >= bucketSeeds && (seed - bucketSeeds) % kinds === 4;
}

/** Every sixth of these puts the database back, too. */
export function isPutBackSeed(seed: number): boolean {
  return seed >= bucketSeeds && (seed - bucketSeeds) % kinds === 1;
}
