/** One story as the host hears it, told once in one piece and then perhaps in many, and with pauses. */
import assert from "node:assert/strict";
import { Random } from "../conformance/random.ts";
import { Line } from "./line.ts";

const longestBytes = 70_000;
const longBytes = 4_096;
const whole = () => Number.POSITIVE_INFINITY;

/**
 * The bytes in one piece, and in many if there is a seed for them, give the same story, and break nothing: neither what is
 * told of an end, nor anyone who listens (a listener's own error is only a warning to the channel).
 */
export async function hear(bytes: Buffer, seed: number | undefined): Promise<void> {
  let warned: Error | undefined;
  const onWarning = (warning: Error) => {
    warned ??= warning;
  };
  process.on("warning", onWarning);
  try {
    const told = await Line.hear(bytes, whole);
    if (seed !== undefined) {
      const random = new Random(seed);
      const inPieces = await Line.hear(bytes, pieces(bytes.length, random));
      assert.deepEqual(inPieces.toSorted(), told.toSorted(), "pieces change what is understood");
      // What the host says in between makes another story of it: there is nothing to compare.
      await Line.hear(bytes, pieces(bytes.length, random), () => random.below(8) === 0);
    }
  } finally {
    process.off("warning", onWarning);
  }
  if (warned !== undefined) throw warned;
}

/** Sizes up to a bound that may be a single byte. Of a long story every fourth is any, or it would never come to its end. */
function pieces(length: number, random: Random): () => number {
  const most = 1 + random.size(longestBytes);
  const isLong = length > longBytes;
  return () => (isLong && random.below(4) === 0 ? 1 + random.size(longestBytes) : 1 + random.below(most));
}
