/** Errors of PostgreSQL as those of requests. The functions of schema/ raise the codes of this table. */
import { CapsuleError, type ErrorCode } from "../wire/errors.ts";

const codes: Readonly<Record<string, ErrorCode>> = {
  CP001: "name_taken",
  CP002: "quota_exceeded",
  CP003: "not_found",
  CP004: "unavailable",
  CP005: "conflict",
  CP006: "conflict",
  CP007: "conflict",
  CP008: "unavailable",
  CP009: "unavailable",
  CP010: "template_name_taken",
  CP011: "unauthorized",
  CP012: "conflict",
  CP013: "conflict",
  CP014: "conflict",
  CP015: "conflict",
  CP016: "unavailable",
  CP017: "conflict",
  CP018: "conflict",
  CP019: "conflict",
};

/** A create's template was replaced or deleted. */
export const retired = "CP005";

/** Fields of a refusal that clients are told. */
const told = ["quota", "used", "limit", "template"];

/** The refusal of a function of the database, with the code that it raised. Nothing was changed. */
export class Refusal extends CapsuleError {
  readonly raised: string;
  /** All that the function has said about it, for this program alone. */
  readonly about: Readonly<Record<string, unknown>>;

  constructor(raised: string, code: ErrorCode, message: string, about: Record<string, unknown>) {
    const details = Object.fromEntries(Object.entries(about).filter(([name]) => told.includes(name)));
    super(code, message, Object.keys(details).length === 0 ? {} : { details });
    this.name = "Refusal";
    this.raised = raised;
    this.about = about;
    Object.defineProperty(this, "about", { enumerable: false }); // a log prints it not
  }
}

/**
 * An error of PostgreSQL without the values that its DETAIL, HINT and CONTEXT, and its messages about data (class 22), may have: those are
 * clients'. The code, and the names in the message, say what was wrong.
 */
class DatabaseError extends Error {
  readonly code: string;
  readonly severity: string;

  constructor({ code, severity, message }: { code: string; severity: string; message: string }) {
    super(code.startsWith("22") ? `PostgreSQL has refused a value (${code})` : `PostgreSQL: ${message} (${code})`);
    this.name = "DatabaseError";
    this.code = code;
    this.severity = severity;
  }
}

/** A statement may have run, and nobody can tell: it had no answer in its time. */
export class Unanswered extends CapsuleError {
  /** false: it was not sent, or each time that it was, the server has refused it. */
  readonly mayHaveRun: boolean;

  constructor(what: string, cause: unknown, mayHaveRun = true) {
    super("unavailable", `cannot ${what}: the cluster's database is away`, { cause });
    this.name = "Unanswered";
    this.mayHaveRun = mayHaveRun;
  }
}

/** An answer of the server, as opposed to a lost connection. Classes 08, 53 and 57: the server is ending or full; 40, 55: a lock. */
export function isAnswer(error: unknown): error is Error & { code: string } {
  const { code, severity } = error as { code?: unknown; severity?: unknown };
  return typeof code === "string" && typeof severity === "string" && !/^(08|40|53|55|57)/.test(code);
}

/** Whether the connection that a statement failed on can run another one. */
export function isUsable(error: unknown): boolean {
  const { code, severity } = error as { code?: unknown; severity?: unknown };
  return typeof code === "string" && severity === "ERROR" && !/^(08|57)/.test(code);
}

/** The refusal that the database raised; any other error of it without values; and what is none of its as it is. */
export function withoutValues(error: unknown): unknown {
  const { code, severity, detail } = error as { code?: unknown; severity?: unknown; detail?: string };
  if (!(error instanceof Error) || typeof code !== "string" || typeof severity !== "string") return error;
  const own = codes[code];
  if (own === undefined) return new DatabaseError({ code, severity, message: error.message });
  return new Refusal(code, own, error.message, detailsOf(detail));
}

function detailsOf(text: string | undefined): Record<string, unknown> {
  try {
    const details: unknown = JSON.parse(text ?? "{}");
    return typeof details === "object" && details !== null ? { ...details } : {};
  } catch {
    return {};
  }
}
