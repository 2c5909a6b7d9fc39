/** Work on many items, with a limit on how much of it runs at the same time. */

/** Resolves when all work has ended. `work` must not reject. */
export async function forEachAtMost<T>(
  max: number,
  items: readonly T[],
  work: (item: T) => Promise<void>,
): Promise<void> {
  const rest = items.values();
  const worker = async () => {
    for (const item of rest) await work(item);
  };
  await Promise.all(Array.from({ length: Math.min(max, items.length) }, worker));
}
