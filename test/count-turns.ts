/** Counts turns of the event loop until a test ends. */
import type { TestContext } from "node:test";

/** The number of the turn that is under way. */
export function countTurns(t: TestContext): () => number {
  let turn = 0;
  let isOver = false;
  const count = () => {
    turn++;
    if (!isOver) setImmediate(count);
  };
  count();
  t.after(() => {
    isOver = true;
  });
  return () => turn;
}
