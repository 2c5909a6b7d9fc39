/**
 * Two classes of errors. `ServiceError`: the service refused. `ConnectionError`: there was no answer, or not a complete
 * one. Both have a `code` to branch on. An abort by the caller's signal throws the signal's reason.
 */
import { type ErrorCode, statusOf } from "../wire/errors.ts";

export type { ErrorCode };

/** The service refused. `code` and `status` are those of the API's error table; `message` is for people. */
export class ServiceError extends Error {
  override readonly name = "ServiceError";
  readonly code: ErrorCode;
  /** HTTP status; also of a refusal over a WebSocket. */
  readonly status: number;
  /** Data for programs, such as the partial output of a command that timed out. */
  readonly details: Readonly<Record<string, unknown>> | undefined;
  /** Seconds after which the service allows a retry. */
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
 * - `unreachable`: no connection; nothing was sent.
 * - `cut_off`: the connection broke, or the answer was not the service's; the request may have been carried out.
 * - `timed_out`: no answer within `timeoutMs`.
 * - `fell_behind`: the reader was too slow: more output was buffered than the limit, and the stream was closed.
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

/** Whether a caught value is an error of this package with this code. */
export function hasCode(error: unknown, code: ErrorCode | ConnectionCode): error is ServiceError | ConnectionError {
  return (error instanceof ServiceError || error instanceof ConnectionError) && error.code === code;
}

const notFoundReason = "command_not_found";

/** Whether a caught value says that the command does not exist or cannot be executed. */
export function isCommandNotFound(error: unknown): error is ServiceError {
  return error instanceof ServiceError && error.details?.reason === notFoundReason;
}

/** A refusal over a WebSocket; `code` is "invalid_request" from a service that does not name it. */
export function refusalWith(code: string | undefined, message: string): ServiceError {
  if (code === notFoundReason) return new ServiceError("invalid_request", message, { details: { reason: code } });
  const isKnown = code !== undefined && Object.hasOwn(statusOf, code);
  return new ServiceError(isKnown ? (code as ErrorCode) : "invalid_request", message);
}

/** The error in a response with a status above 399. */
export async function refusalOf(response: Response): Promise<ServiceError | ConnectionError> {
  const text = await response.text();
  const body = parsed(text);
  if (body === undefined) {
    const said = text.slice(0, 200);
    const what =
      response.status === 413
        ? "as a proxy before the service does: raise its limit (nginx: client_max_body_size)"
        : `not as the service does: ${said}`;
    return new ConnectionError("cut_off", `${response.url} answered ${response.status}, ${what}`);
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
 * Classifies an error of `fetch`: nothing was sent (`unreachable`), or the request may have been carried out
 * (`cut_off`). Browsers do not give the cause; there it is `cut_off`.
 */
export function connectionErrorOf(error: unknown, url: string): ConnectionError {
  const code = systemCode(error);
  const message = error instanceof Error ? innermost(error).message || error.message : String(error);
  const refused = refusedHere(code, message, url);
  if (refused !== undefined) return new ConnectionError("unreachable", refused, { cause: error });
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

/** The reason for which nothing was sent, with the remedy; undefined: another failure. */
function refusedHere(code: string, message: string, url: string): string | undefined {
  if (/wrong version number/i.test(message) || code === "ERR_SSL_WRONG_VERSION_NUMBER")
    return `${url} does not speak TLS: try ${url.replace(/^https/i, "http")}`;
  if (untrustedCodes.has(code))
    return `the certificate of ${url} is not trusted: ${message}. Node trusts those in the file that NODE_EXTRA_CA_CERTS names`;
  if (wrongCertificateCodes.has(code)) return `the certificate of ${url} is refused: ${message}`;
  if (message === "bad port")
    return `fetch connects to no service at the port of ${url}: give the service another port`;
  return code === "ERR_INVALID_URL" || message === "unknown scheme"
    ? `the address of the service is ${JSON.stringify(url)}, which is not a URL`
    : undefined;
}

const untrustedCodes = new Set([
  "DEPTH_ZERO_SELF_SIGNED_CERT",
  "SELF_SIGNED_CERT_IN_CHAIN",
  "UNABLE_TO_GET_ISSUER_CERT",
  "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
  "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
]);

const wrongCertificateCodes = new Set(["CERT_HAS_EXPIRED", "CERT_NOT_YET_VALID", "ERR_TLS_CERT_ALTNAME_INVALID"]);

/** Deno sets no code. */
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
