/** Waiting with a time limit, or until an AbortSignal fires, for work that does not take a signal itself. */
import { CapsuleError } from "../wire/errors.ts";

/**
 * Settles as `work` does, or rejects with CapsuleError("agent_error") after `ms`, where `what` names the work, or with the
 * reason of `signal` when that fires. The work itself continues until the caller ends the VM that it waits for.
 */
export async function withDeadline<T>(ms: number, what: string, work: Promise<T>, signal?: AbortSignal): Promise<T> {
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(new CapsuleError("agent_error", `${what} took longer than ${ms} ms`)), ms);
  try {
    return await unlessAborted(signal === undefined ? late.signal : AbortSignal.any([signal, late.signal]), work);
  } finally {
    clearTimeout(timer);
  }
}

/** Settles as `work` does, or rejects with the reason of `signal` when that fires; the work itself continues. */
export async function unlessAborted<T>(signal: AbortSignal | undefined, work: Promise<T>): Promise<T> {
  if (signal === undefined) return await work;
  const { promise, reject } = Promise.withResolvers<never>();
  const onAbort = () => reject(signal.reason);
  signal.addEventListener("abort", onAbort, { once: true });
  if (signal.aborted) onAbort();
  try {
    return await Promise.race([work, promise]);
  } finally {
    signal.removeEventListener("abort", onAbort);
  }
}
