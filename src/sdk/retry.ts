/**
 * When a request is sent again by itself: only where it cannot have been carried out twice. Refused connections and
 * refusals with Retry-After were not carried out at all; a broken connection may have been, so only requests that may
 * be repeated are.
 */
import { ConnectionError, ServiceError } from "./errors.ts";

/**
 * - `always`: carrying it out twice is as good as once.
 * - `unsent`: only if it certainly was not carried out.
 * - `never`: its body can be sent only once.
 */
export type Repeat = "always" | "unsent" | "never";

const firstMs = 200;
const longestMs = 5_000;
/** A service that asks for more patience than this is asking a person. */
const patienceSec = 30;

/** How long to wait before the attempt after `attempt` (from 0), or undefined: give up. */
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
    if (error.retryAfterSec === undefined || error.retryAfterSec > patienceSec) return undefined;
    return error.retryAfterSec * 1_000 + jitteredMs;
  }
  if (!(error instanceof ConnectionError)) return undefined;
  const wasUnsent = error.code === "unreachable";
  const isWorthIt = wasUnsent || (repeat === "always" && error.code === "cut_off");
  return isWorthIt ? jitteredMs : undefined;
}

/** Resolves after the time; rejects with the signal's reason when it aborts before. */
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
