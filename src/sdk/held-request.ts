/**
 * Requests that the service holds until something happens. It holds them a minute, or as long as its operator allows: a
 * service that refuses the wanted time is asked for its limit, once per client.
 */
import { ServiceError } from "./errors.ts";
import { sleep } from "./retry.ts";
import type { CallOptions, Request, Transport } from "./transport.ts";

/** Longest wait for a status. */
export const waitMs = 180_000;
const holdSec = 60;
/** Beyond the held time, for the request itself. */
const graceMs = 30_000;
/** A service that holds nothing is asked no more often than this. */
const leastMs = 200;

/** By client; a service's limit changes only with its restart. */
const allowedSec = new WeakMap<Transport, number>();

export interface Held {
  path: string;
  query?: Record<string, string>;
  /** A time of `performance.now()`. */
  deadline: number;
  signal?: CallOptions["signal"];
}

/** One answer of the service, which may say that nothing has happened yet. */
export async function held<T>(transport: Transport, { path, query = {}, deadline, signal }: Held): Promise<T> {
  const beganMs = performance.now();
  const wantedSec = Math.max(1, Math.ceil((deadline - beganMs) / 1_000));
  const ask = () => {
    const sec = Math.min(holdSec, wantedSec, allowedSec.get(transport) ?? holdSec);
    // A limit of 0 allows no value: the default is 0 then.
    const timeout = sec === 0 ? undefined : sec;
    const timeoutMs = sec * 1_000 + graceMs;
    const request: Request = { method: "GET", path, query: { ...query, timeout }, signal, timeoutMs };
    return transport.json<T>(request);
  };
  const answer = await ask().catch(async (error) => {
    if (!isTooLong(error) || allowedSec.has(transport)) throw error;
    const limits = await transport.json<{ wait_max_sec: number }>({ method: "GET", path: "/v1/limits", signal });
    allowedSec.set(transport, limits.wait_max_sec);
    return ask();
  });
  const passedMs = performance.now() - beganMs;
  if (allowedSec.get(transport) === 0 && passedMs < leastMs) await sleep(leastMs - passedMs, signal);
  return answer;
}

function isTooLong(error: unknown): boolean {
  return error instanceof ServiceError && error.status === 400 && error.details?.field === "timeout";
}

/** Requests that write memory to disk or read it back may take longer than others. */
export function slowly(options: CallOptions): CallOptions {
  return { ...options, timeoutMs: options.timeoutMs ?? waitMs };
}
