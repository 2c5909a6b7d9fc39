/** Concurrent work that is cleaned up after. */

/**
 * Like Promise.all, but rejects, with the first failure in order, only when all promises have settled: the caller can then
 * remove files without one of them being written again.
 */
export async function allSettledOrThrow<T extends readonly unknown[]>(work: readonly [...T]): Promise<Settled<T>> {
  const outcomes = await Promise.allSettled(work);
  const values = outcomes.map((outcome) => {
    if (outcome.status === "rejected") throw outcome.reason;
    return outcome.value;
  });
  return values as Settled<T>;
}

type Settled<T extends readonly unknown[]> = { -readonly [Index in keyof T]: Awaited<T[Index]> };
