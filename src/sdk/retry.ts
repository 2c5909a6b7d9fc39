/**
 * When a request is retried: only if it cannot be carried out twice. Refused connections and refusals with Retry-After
 * were not carried out; after a broken connection only idempotent requests are retried.
 */
import { ConnectionError, ServiceError } from "./errors.ts";

/**
 * - `always`: the request is idempotent.
 * - `unsent`: retry only if it was certainly not carried out.
 * - `never`: the body can be sent only once.
 */
export type Repeat = "always" | "unsent" | "never";

const firstMs = 200;
const longestMs = 5_000;
/** Longest Retry-After that is waited for. */
const retryAfterMaxSec = 30;

/** Delay before the next attempt; undefined: give up. `attempt` counts from 0. */
export function retryDelayMs(
  error: unknown,
  attempt: number,
  repeat: Repeat,
  random: () => number = Math.random,
): number | undefined {
  if (repeat === "never") return undefined;
  const jitteredMs = random() * Math.min(longestMs, firstMs * 2 ** attempt);
  if (error instanceof ServiceError) {
    if (error.status !== 429 && error.status !== 503) return undefined;
    if (error.retryAfterSec === undefined || error.retryAfterSec > retryAfterMaxSec) return undefined;
    return error.retryAfterSec * 1_000 + jitteredMs;
  }
  if (!(error instanceof ConnectionError)) return undefined;
  const wasUnsent = error.code === "unreachable";
  const isWorthIt = wasUnsent || (repeat === "always" && error.code === "cut_off");
  return isWorthIt ? jitteredMs : undefined;
}

/** Resolves after `ms`; rejects with the signal's reason when it aborts first. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
