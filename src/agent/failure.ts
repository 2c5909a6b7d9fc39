/**
 * Converts the agent's FAIL frames to errors: maps the code to an error code of the API and sanitizes the message.
 * `failure` keeps the agent's code, which is more specific: command_not_found, slow_reader.
 */
import { CapsuleError, type ErrorCode } from "../wire/errors.ts";
import { nameOf, Verb } from "./protocol.ts";
import { ProtocolError } from "./records.ts";

/**
 * `too_many` is a quota: the capsule has its maximum of open operations, and a later retry can succeed. `slow_reader`
 * never becomes an HTTP status, because its stream is open already.
 */
const codeOf = {
  not_found: "not_found",
  invalid: "invalid_request",
  is_directory: "invalid_request",
  not_directory: "invalid_request",
  too_large: "too_large",
  no_space: "no_space",
  command_not_found: "invalid_request",
  conflict: "conflict",
  too_many: "quota_exceeded",
  slow_reader: "quota_exceeded",
  asleep: "agent_error",
  internal: "agent_error",
} as const satisfies Record<string, ErrorCode>;

/** The codes of a FAIL frame. */
export type Failure = keyof typeof codeOf;

/** The agent refused or aborted one request; the connection stays usable. */
export class AgentFailure extends CapsuleError {
  readonly failure: Failure;

  constructor(failure: Failure, code: ErrorCode, message: string) {
    super(code, message, failure === "command_not_found" ? { details: { reason: failure } } : {});
    this.name = "AgentFailure";
    this.failure = failure;
  }
}

/** Verbs that carry a file's content. */
const contentVerbs: ReadonlySet<Verb> = new Set([Verb.READ, Verb.READ_RANGE, Verb.WRITE, Verb.WRITE_AS]);

export function failureOf(verb: Verb, code: string, message: string): AgentFailure {
  const failure = Object.hasOwn(codeOf, code) ? (code as Failure) : "internal";
  // Only a file's content is 413; a command line or a listing that is too large is a bad request.
  const oversizedRequest = failure === "too_large" && !contentVerbs.has(verb);
  const text = printable(message) || `the guest agent answered ${failure}`;
  return new AgentFailure(failure, oversizedRequest ? "invalid_request" : codeOf[failure], text);
}

const networkVerbs: ReadonlySet<Verb> = new Set([Verb.DIAL, Verb.PORTS]);

/** The agent is part of a VM's memory, so only a VM that boots has this release's. */
export function lacksVerb(verb: Verb): CapsuleError {
  const why = networkVerbs.has(verb)
    ? "the capsule was made before networking"
    : `the agent in this capsule is of an earlier release, which has no verb ${nameOf(verb)}`;
  return new CapsuleError("conflict", `${why}: stop and start it, or make its template anew`);
}

/** The reason for closing a connection after a protocol violation or an exception in a handler. */
export function violation(error: unknown): CapsuleError {
  const what =
    error instanceof ProtocolError
      ? `the guest agent broke the protocol: ${error.message}`
      : "the guest agent's answer could not be handled";
  return new CapsuleError("agent_error", what, { cause: error });
}

const maxMessageLength = 500;

/** Guest text without control, format and lone surrogate characters, 500 characters at most. */
export function printable(text: string): string {
  const clean = text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, "\ufffd");
  if (clean.length <= maxMessageLength) return clean;
  return `${clean.slice(0, maxMessageLength - 1).replace(/[\ud800-\udbff]$/, "")}…`;
}
