/** Runs tasks side by side, in their order, up to a sum of weights. */

export async function runSideBySide<T extends { weight: number }>(
  tasks: readonly T[],
  atOnce: number,
  runOne: (task: T) => Promise<void>,
): Promise<void> {
  const pending = [...tasks];
  const running = new Set<Promise<void>>();
  let weight = 0;
  while (pending.length > 0 || running.size > 0) {
    // The first one that fits; one that is too heavy for the pool runs alone.
    const next = pending.findIndex((task) => weight === 0 || weight + task.weight <= atOnce);
    if (next === -1) {
      await Promise.race(running);
      continue;
    }
    const [task] = pending.splice(next, 1) as [T];
    weight += task.weight;
    const run: Promise<void> = runOne(task).finally(() => {
      weight -= task.weight;
      running.delete(run);
    });
    running.add(run);
  }
}
