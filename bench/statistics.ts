/** Samples and what is said about them. */

export interface Summary {
  p50: number;
  p95: number;
  p99: number;
  samples: number;
}

/** Of at least one sample. */
export function summarize(samples: number[]): Summary {
  const sorted = samples.toSorted((a, b) => a - b);
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]!;
  return { p50: at(0.5), p95: at(0.95), p99: at(0.99), samples: sorted.length };
}

/** Milliseconds that `work` took. */
export async function timed(work: () => Promise<unknown>): Promise<number> {
  const began = performance.now();
  await work();
  return performance.now() - began;
}
