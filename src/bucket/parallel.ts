/** Work on many things, some of them at a time. After a failure none is begun any more. */

/**
 * Each of `count` lanes takes one item after the other. `lane` makes what works on them, so that it may have a buffer of its own. Rejects
 * with the first failure or the signal's reason, and only when nothing is under way any more: what was begun ends by itself or by the
 * signal, which the work looks at.
 */
export async function inLanes<T>(
  items: Iterable<T>,
  { count, signal, lane }: { count: number; signal?: AbortSignal | undefined; lane: () => (item: T) => Promise<void> },
): Promise<void> {
  const failures: unknown[] = [];
  const pending = items[Symbol.iterator]();
  const run = async () => {
    const work = lane();
    try {
      while (failures.length === 0 && !signal?.aborted) {
        const { done, value } = pending.next();
        if (done === true) return;
        await work(value);
      }
    } catch (error) {
      failures.push(error);
    }
  };
  await Promise.all(Array.from({ length: count }, run));
  signal?.throwIfAborted();
  if (failures.length > 0) throw failures[0];
}
