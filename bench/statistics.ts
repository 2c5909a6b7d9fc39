/** Summaries of samples. */

export interface Summary {
  p50: number;
  p95: number;
  p99: number;
  mean: number;
  min: number;
  max: number;
  samples: number;
}

/** Throws without samples. A percentile is always a measured sample, never interpolated. */
export function summarize(samples: readonly number[]): Summary {
  if (samples.length === 0) throw new Error("nothing was measured");
  const sorted = samples.toSorted((a, b) => a - b);
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]!;
  return {
    p50: at(0.5),
    p95: at(0.95),
    p99: at(0.99),
    mean: sorted.reduce((sum, sample) => sum + sample, 0) / sorted.length,
    min: sorted[0]!,
    max: sorted.at(-1)!,
    samples: sorted.length,
  };
}

/** Milliseconds that `work` took. */
export async function timed(work: () => Promise<unknown>): Promise<number> {
  const began = performance.now();
  await work();
  return performance.now() - began;
}

/** The samples of `count` measurements, one after the other. */
export async function repeat(count: number, measure: (round: number) => Promise<number>): Promise<number[]> {
  const samples: number[] = [];
  for (let round = 0; round < count; round++) samples.push(await measure(round));
  return samples;
}
