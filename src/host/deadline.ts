/** Waits that end. */
import { CapsuleError } from "../wire/errors.ts";

/** Settles as `work` does, or rejects with CapsuleError("agent_error") after `ms`; `what` names the work in its message. */
export async function withDeadline<T>(ms: number, what: string, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(new CapsuleError("agent_error", `${what} took longer than ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Settles as `work` does, or rejects with the reason of `unwanted` when that fires; the work goes on for others. */
export async function unlessAborted<T>(signal: AbortSignal | undefined, work: Promise<T>): Promise<T> {
  if (signal === undefined) return await work;
  const { promise, reject } = Promise.withResolvers<never>();
  const leave = () => reject(signal.reason);
  signal.addEventListener("abort", leave, { once: true });
  if (signal.aborted) leave();
  try {
    return await Promise.race([work, promise]);
  } finally {
    signal.removeEventListener("abort", leave);
  }
}
