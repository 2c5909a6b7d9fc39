/**
 * What can go wrong, as two classes. `ServiceError`: the service answered, and said no. `ConnectionError`: it did not
 * answer, or not to the end. Both have a `code` to branch on. An abort by the caller's own signal throws its reason.
 */
import { type ErrorCode, statusOf } from "../wire/errors.ts";

export type { ErrorCode };

/** The service refused. `code` and `status` are those of the API's error table; `message` is for people. */
export class ServiceError extends Error {
  override readonly name = "ServiceError";
  readonly code: ErrorCode;
  /** HTTP status; also where the refusal came over a WebSocket. */
  readonly status: number;
  /** What the service adds for programs, such as the partial output of a command that ran out of time. */
  readonly details: Readonly<Record<string, unknown>> | undefined;
  /** When the service asks to be tried again, in seconds. */
  readonly retryAfterSec: number | undefined;

  constructor(
    code: ErrorCode,
    message: string,
    rest: { status?: number; details?: Record<string, unknown> | undefined; retryAfterSec?: number | undefined } = {},
  ) {
    super(message);
    this.code = code;
    this.status = rest.status ?? statusOf[code];
    this.details = rest.details;
    this.retryAfterSec = rest.retryAfterSec;
  }
}

/**
 * - `unreachable`: nobody was there; nothing was sent.
 * - `cut_off`: the connection broke, or what came was no answer of the service; it may or may not have acted.
 * - `timed_out`: no answer within the time that this client was told to wait.
 * - `fell_behind`: output came faster than it was read for too long, and was cut.
 */
export type ConnectionCode = "unreachable" | "cut_off" | "timed_out" | "fell_behind";

export class ConnectionError extends Error {
  override readonly name = "ConnectionError";
  readonly code: ConnectionCode;

  constructor(code: ConnectionCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.code = code;
  }
}

/** Whether something caught is an error of this package with that code. */
export function hasCode(error: unknown, code: ErrorCode | ConnectionCode): error is ServiceError | ConnectionError {
  return (error instanceof ServiceError || error instanceof ConnectionError) && error.code === code;
}

/** The error that a response above 399 carries. */
export async function refusalOf(response: Response): Promise<ServiceError | ConnectionError> {
  const text = await response.text();
  const body = parsed(text);
  if (body === undefined) {
    const said = text.slice(0, 200);
    return new ConnectionError(
      "cut_off",
      `${response.url} answered ${response.status}, not as the service does: ${said}`,
    );
  }
  const retryAfter = Number(response.headers.get("retry-after") ?? Number.NaN);
  return new ServiceError(body.code, body.message, {
    status: response.status,
    details: body.details,
    retryAfterSec: Number.isFinite(retryAfter) ? retryAfter : undefined,
  });
}

function parsed(text: string): { code: ErrorCode; message: string; details?: Record<string, unknown> } | undefined {
  try {
    const { error } = JSON.parse(text);
    return typeof error.code === "string" && typeof error.message === "string" ? error : undefined;
  } catch {
    return undefined;
  }
}

/**
 * What `fetch` threw, told apart: before anything was sent, or perhaps after. Browsers do not say; there it counts as
 * perhaps after.
 */
export function connectionErrorOf(error: unknown, url: string): ConnectionError {
  const code = systemCode(error);
  const message = error instanceof Error ? innermost(error).message || error.message : String(error);
  return unsentCodes.has(code) || unsentInDeno.test(message)
    ? new ConnectionError("unreachable", `nobody answers at ${url}: ${message}`, { cause: error })
    : new ConnectionError("cut_off", `the connection to ${url} broke: ${message}`, { cause: error });
}

const unsentCodes = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ConnectionRefused",
]);

/** Deno has no code for it. */
const unsentInDeno = /client error \(Connect\)/;

function systemCode(error: unknown): string {
  const { code, cause, errors } = (error ?? {}) as { code?: unknown; cause?: unknown; errors?: unknown[] };
  if (typeof code === "string") return code;
  if (cause !== undefined) return systemCode(cause);
  return errors?.[0] === undefined ? "" : systemCode(errors[0]);
}

function innermost(error: Error): Error {
  return error.cause instanceof Error ? innermost(error.cause) : error;
}
