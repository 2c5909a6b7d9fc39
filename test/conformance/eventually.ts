/** Polls for conditions that no event announces. */
import { setTimeout as delay } from "node:timers/promises";

const pollMs = 40;

/** Polls until the result is neither false nor undefined, and returns it. Throws at the deadline. */
export async function eventually<T>(
  what: string,
  ask: () => Promise<T | false | undefined>,
  deadlineMs = 60_000,
): Promise<T> {
  for (const began = performance.now(); performance.now() - began < deadlineMs; await delay(pollMs)) {
    const answer = await ask();
    if (answer !== false && answer !== undefined) return answer;
  }
  throw new Error(`not within ${deadlineMs} ms: ${what}`);
}
