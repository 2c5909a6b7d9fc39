/** The wait of all tests for a condition that no event announces. */
import { setTimeout as delay } from "node:timers/promises";

/** Ends a wait for what never comes; a machine that is twenty times slower than usual is no reason to fail. */
const usualMs = 120_000;

/**
 * Asks until the answer is neither false nor undefined, and returns it. At the deadline it throws and says what it waited
 * for; an `ask` that never answers ends there, too. Mocked timers and clocks do not affect it.
 */
export async function waitFor<T>(
  what: string | (() => string),
  ask: () => T | false | undefined | Promise<T | false | undefined>,
  { deadlineMs = usualMs, longestPauseMs = 40 } = {},
): Promise<T> {
  const late = Symbol();
  const stop = new AbortController();
  const deadline = delay(deadlineMs, late, { signal: stop.signal }).catch(() => late);
  let isLate = false;
  void deadline.then(() => {
    isLate = true;
  });
  try {
    for (let pauseMs = 1; !isLate; pauseMs = Math.min(2 * pauseMs, longestPauseMs)) {
      if (pauseMs > 1) await delay(pauseMs);
      const answer = await Promise.race([ask(), deadline]);
      if (answer !== late && answer !== false && answer !== undefined) return answer as T;
    }
  } finally {
    stop.abort();
  }
  throw new Error(`not within ${deadlineMs} ms: ${typeof what === "string" ? what : what()}`);
}

/** Waits for a promise, and throws at the deadline. */
export async function within<T>(
  what: string | (() => string),
  promise: Promise<T>,
  { deadlineMs = usualMs } = {},
): Promise<T> {
  const { value } = await waitFor(what, async () => ({ value: await promise }), { deadlineMs });
  return value;
}
