/**
 * The one table of errors: machine-readable code → HTTP status, the one error class that every layer throws, and the
 * close codes of WebSockets. A lower layer throws the code it knows; `http/` maps it once. Without imports, for the
 * SDK.
 */

export const statusOf = {
  invalid_request: 400,
  unauthorized: 401,
  forbidden: 403,
  not_found: 404,
  method_not_allowed: 405,
  request_timeout: 408,
  invalid_state: 409,
  conflict: 409,
  name_taken: 409,
  template_name_taken: 409,
  name_reserved: 409,
  too_large: 413,
  unsupported_media_type: 415,
  range_not_satisfiable: 416,
  quota_exceeded: 429,
  headers_too_large: 431,
  internal_error: 500,
  agent_error: 502,
  port_closed: 502,
  no_capacity: 503,
  unavailable: 503,
  timeout: 504,
  no_space: 507,
} as const;

export type ErrorCode = keyof typeof statusOf;

export type ErrorDetails = Record<string, unknown>;

/** An error that a client is told about: `message` says what could not be done to which thing. */
export class CapsuleError extends Error {
  readonly code: ErrorCode;
  readonly details: ErrorDetails | undefined;
  /** When it may be worth trying again, for a code that is answered with Retry-After; null: the answer has none. */
  readonly retryAfterSec: number | null | undefined;

  constructor(
    code: ErrorCode,
    message: string,
    options: { cause?: unknown; details?: ErrorDetails; retryAfterSec?: number | null } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "CapsuleError";
    this.code = code;
    this.details = options.details;
    this.retryAfterSec = options.retryAfterSec;
  }

  get status(): number {
    return statusOf[this.code];
  }
}

/** The message of anything that was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Why the server closed a WebSocket. Codes below 4000 are those of RFC 6455. */
export const closeCodes = {
  done: 1000,
  stopping: 1001,
  unacceptable: 1003,
  tooSlow: 1008,
  broken: 1011,
  busy: 1013,
  badMessage: 4400,
  revoked: 4401,
  destroyed: 4404,
  silent: 4408,
  paused: 4409,
} as const;
