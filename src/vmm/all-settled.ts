/** Work done side by side. */

/**
 * Resolves as Promise.all does, but rejects, with the first failure in order, only when all have ended: whoever cleans up
 * after it has nobody writing behind its back.
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
