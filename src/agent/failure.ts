/**
 * What the agent says when it cannot do a thing, as an error for people: its code mapped to ours, its words cleaned.
 * `failure` keeps what the mapping loses: that a command was not found, that a reader was too slow.
 */
import { CapsuleError, type ErrorCode } from "../wire/errors.ts";
import { Verb } from "./protocol.ts";
import { ProtocolError } from "./records.ts";

/**
 * `too_many` is a quota: the capsule has as much open at once as it may, and trying again later helps. A slow reader is
 * over its quota of backlog; it never becomes a status, since its stream is open already.
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

/** The agent refused or gave up; the connection is as good as before. */
export class AgentFailure extends CapsuleError {
  readonly failure: Failure;

  constructor(failure: Failure, code: ErrorCode, message: string) {
    super(code, message);
    this.name = "AgentFailure";
    this.failure = failure;
  }
}

export function failureOf(verb: Verb, code: string, message: string): AgentFailure {
  const failure = Object.hasOwn(codeOf, code) ? (code as Failure) : "internal";
  // Only a file's content can be too large in the sense of 413; a command line or a listing is a bad request.
  const oversizedRequest = failure === "too_large" && verb !== Verb.READ && verb !== Verb.WRITE;
  const text = printable(message) || `the guest agent answered ${failure}`;
  return new AgentFailure(failure, oversizedRequest ? "invalid_request" : codeOf[failure], text);
}

/** The end of a connection whose guest cannot be trusted, or of which we lost count ourselves. */
export function violation(error: unknown): CapsuleError {
  const what =
    error instanceof ProtocolError
      ? `the guest agent broke the protocol: ${error.message}`
      : "the guest agent's answer could not be handled";
  return new CapsuleError("agent_error", what, { cause: error });
}

const maxMessageLength = 500;

/** Guest text without control, format and lone surrogate characters, and not long. */
export function printable(text: string): string {
  const clean = text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, "\ufffd");
  if (clean.length <= maxMessageLength) return clean;
  return `${clean.slice(0, maxMessageLength - 1).replace(/[\ud800-\udbff]$/, "")}…`;
}
