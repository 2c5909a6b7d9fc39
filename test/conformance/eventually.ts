/** Waiting for what no answer announces. */
import { setTimeout as delay } from "node:timers/promises";

const everyMs = 40;

/** Asks until the answer is neither false nor undefined. Throws when that takes too long. */
export async function eventually<T>(
  what: string,
  ask: () => Promise<T | false | undefined>,
  deadlineMs = 60_000,
): Promise<T> {
  for (const began = performance.now(); performance.now() - began < deadlineMs; await delay(everyMs)) {
    const answer = await ask();
    if (answer !== false && answer !== undefined) return answer;
  }
  throw new Error(`not within ${deadlineMs} ms: ${what}`);
}
