/** Runs one input through the host's end of a connection: in one chunk, in many, and in many with pauses. */
import assert from "node:assert/strict";
import { Random } from "../conformance/random.ts";
import { HostEnd } from "./host-end.ts";

const maxChunkBytes = 70_000;
const longInputBytes = 4_096;
const whole = () => Number.POSITIVE_INFINITY;

/**
 * Checks that the outcomes do not depend on the chunks. With a seed, chunks are random. Throws for process warnings
 * too, because the channel reports a handler's exception as a warning.
 */
export async function checkInput(bytes: Buffer, seed: number | undefined): Promise<void> {
  let warned: Error | undefined;
  const onWarning = (warning: Error) => {
    warned ??= warning;
  };
  process.on("warning", onWarning);
  try {
    const expected = await HostEnd.run(bytes, whole);
    if (seed !== undefined) {
      const random = new Random(seed);
      const outcomes = await HostEnd.run(bytes, chunkSizes(bytes.length, random));
      assert.deepEqual(outcomes.toSorted(), expected.toSorted(), "the outcomes depend on the chunks");
      // With pauses the host sends frames in between, so the outcomes may differ and are not compared.
      await HostEnd.run(bytes, chunkSizes(bytes.length, random), () => random.below(8) === 0);
    }
  } finally {
    process.off("warning", onWarning);
  }
  if (warned !== undefined) throw warned;
}

/** Random sizes up to a random maximum, which may be 1. Every fourth chunk of a long input ignores it, for speed. */
function chunkSizes(length: number, random: Random): () => number {
  const max = 1 + random.size(maxChunkBytes);
  const isLong = length > longInputBytes;
  return () => (isLong && random.below(4) === 0 ? 1 + random.size(maxChunkBytes) : 1 + random.below(max));
}
