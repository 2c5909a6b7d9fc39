/** Waits that end. */
import { CapsuleError } from "../wire/errors.ts";

/** Settles as `work` does, or rejects with CapsuleError("agent_error") after `ms`; `what` names the work in its message. */
export async function within<T>(ms: number, what: string, work: Promise<T>): Promise<T> {
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
