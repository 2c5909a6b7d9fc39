/**
 * The audit log: who did what to which capsule, when, and how it ended. Entries wait in memory for at most a second and
 * are then written together; those that must not be lost are written before their request is answered.
 */
import type { AuditQuery, AuditRow, AuditRows, NewAuditRow } from "../db/audit-rows.ts";

export type AuditEntry = Omit<NewAuditRow, "at">;

export interface AuditOptions {
  rows: AuditRows;
  now?: () => number;
  /** Of one team; the oldest go first. */
  entriesMax: number;
  keepMs: number;
  /** Told when entries had to be dropped because they could not be written for long. */
  onLoss: (entries: number) => void;
}

export interface AuditPage {
  /** Newest first. */
  entries: AuditRow[];
  /** `before` of the next page; null: there is none. */
  next: number | null;
}

/** Written at once when so many wait. */
const waitingMax = 1_000;
/** Kept while the database cannot be written. */
const unwrittenMax = 10_000;
/** How many rows beyond its bound a team may have before the oldest are removed together. */
const slack = 1_000;
/** Rows looked at for their age, at once. */
const ageingMax = 5_000;
const addressMaxLength = 64;
const capsuleIdMaxLength = 64;
const subjectMaxLength = 512;

export class Audit {
  readonly #options: AuditOptions;
  readonly #now: () => number;
  #waiting: NewAuditRow[] = [];
  readonly #counts: Map<string, number>;

  constructor(options: AuditOptions) {
    this.#options = options;
    this.#now = options.now ?? Date.now;
    this.#counts = options.rows.counts();
  }

  /** Is on disk after the next `flush`. Long texts are cut. Never throws. */
  record({ address, capsuleId, subject, ...entry }: AuditEntry): void {
    this.#waiting.push({
      ...entry,
      at: this.#now(),
      address: cut(address, addressMaxLength),
      capsuleId: capsuleId === null ? null : cut(capsuleId, capsuleIdMaxLength),
      subject: subject === null ? null : cut(subject, subjectMaxLength),
    });
    if (this.#waiting.length % waitingMax === 0) this.#tryFlush();
  }

  /** Everything recorded so far is durable when this returns. When it throws, the entries wait for another try. */
  flush(): void {
    const rows = this.#waiting;
    if (rows.length === 0) return;
    this.#options.rows.append(rows);
    this.#waiting = [];
    for (const { teamId } of rows) this.#counts.set(teamId, (this.#counts.get(teamId) ?? 0) + 1);
    for (const teamId of new Set(rows.map((row) => row.teamId))) this.#bound(teamId);
  }

  list(teamId: string, query: AuditQuery): AuditPage {
    this.#tryFlush();
    const rows = this.#options.rows.list(teamId, { ...query, limit: query.limit + 1 });
    const entries = rows.slice(0, query.limit);
    return { entries, next: rows.length > entries.length ? (entries.at(-1)?.id ?? null) : null };
  }

  /** Removes a bounded number of entries that are older than they may become. Call now and then. */
  age(): void {
    const at = this.#now() - this.#options.keepMs;
    for (const teamId of this.#counts.keys())
      this.#forgot(teamId, this.#options.rows.forgetBefore(teamId, at, ageingMax));
  }

  #bound(teamId: string): void {
    const excess = (this.#counts.get(teamId) ?? 0) - this.#options.entriesMax;
    if (excess > slack) this.#forgot(teamId, this.#options.rows.forgetOldest(teamId, excess));
  }

  #forgot(teamId: string, count: number): void {
    this.#counts.set(teamId, (this.#counts.get(teamId) ?? 0) - count);
  }

  /** A full disk must not stop the work that the entries tell of: above all, capsules can be destroyed to make room. */
  #tryFlush(): void {
    try {
      this.flush();
    } catch {
      const excess = this.#waiting.length - unwrittenMax;
      if (excess <= 0) return;
      this.#waiting.splice(0, excess);
      this.#options.onLoss(excess);
    }
  }
}

function cut(text: string, maxLength: number): string {
  return text.length <= maxLength ? text : `${text.slice(0, maxLength - 1)}…`;
}
