/** Parts of a file. */
import type { ByteRange } from "./agent.ts";

/** First byte and count of a range in a file of `size` bytes; the count is 0 where the range lies behind its end. */
export function partOf(range: ByteRange, size: number): { first: number; count: number } {
  if ("suffix" in range) {
    const count = Math.min(range.suffix, size);
    return { first: size - count, count };
  }
  const { first, last = Number.POSITIVE_INFINITY } = range;
  return { first, count: Math.max(0, Math.min(last + 1, size) - first) };
}
