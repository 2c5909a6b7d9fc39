/**
 * The audit log: which key did what to which capsule, when, and with what status. Entries are buffered for at most a second
 * and written in one transaction; durable ones are flushed before their request is answered.
 */
import type { AuditQuery, AuditRow, AuditRows, NewAuditRow } from "../db/audit-rows.ts";

export type AuditEntry = Omit<NewAuditRow, "at">;

export interface AuditOptions {
  rows: AuditRows;
  now?: () => number;
  /** Entries of one team; the oldest are removed first. */
  entriesMax: number;
  keepMs: number;
  /** Called when buffered entries were dropped because the database could not be written. */
  onLoss: (entries: number) => void;
}

export interface AuditPage {
  /** Newest first. */
  entries: AuditRow[];
  /** `before` of the next page; null at the end. */
  next: number | null;
}

/** Number of buffered entries that triggers a flush. */
const waitingMax = 1_000;
/** Entries buffered while the database cannot be written. */
const unwrittenMax = 10_000;
/** Rows beyond a team's maximum before the oldest are removed in one statement. */
const excessMax = 1_000;
/** Rows of one team that one call of `removeExpired` reads. */
const expiryBatch = 5_000;
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

  /** The entry is on disk after the next `flush`. Long texts are cut. Never throws. */
  record({ address, capsuleId, subject, ...entry }: AuditEntry): void {
    this.#waiting.push({
      ...entry,
      at: this.#now(),
      address: cut(address, addressMaxLength),
      capsuleId: capsuleId === null ? null : cut(capsuleId, capsuleIdMaxLength),
      subject: subject === null ? null : cut(subject, subjectMaxLength),
    });
    if (this.#waiting.length % waitingMax === 0) this.#try(() => this.flush());
  }

  /**
   * All recorded entries are durable when this returns, but for those that `list` has written since the last commit. When it
   * throws, the entries stay buffered.
   */
  flush(): void {
    this.#write((rows) => this.#options.rows.append(rows));
  }

  #write(append: (rows: readonly NewAuditRow[]) => void): void {
    const rows = this.#waiting;
    if (rows.length === 0) return;
    append(rows);
    this.#waiting = [];
    for (const { teamId } of rows) this.#counts.set(teamId, (this.#counts.get(teamId) ?? 0) + 1);
    for (const teamId of new Set(rows.map((row) => row.teamId))) this.#enforceMax(teamId);
  }

  /** With the entries that are not on disk yet. */
  list(teamId: string, query: AuditQuery): AuditPage {
    this.#try(() => this.#write((rows) => this.#options.rows.appendUnsynced(rows)));
    const rows = this.#options.rows.list(teamId, { ...query, limit: query.limit + 1 });
    const entries = rows.slice(0, query.limit);
    return { entries, next: rows.length > entries.length ? (entries.at(-1)?.id ?? null) : null };
  }

  /** Removes a bounded number of entries older than `keepMs`. Call it periodically. */
  removeExpired(): void {
    const at = this.#now() - this.#options.keepMs;
    for (const teamId of this.#counts.keys())
      this.#subtract(teamId, this.#options.rows.removeBefore(teamId, at, expiryBatch));
  }

  #enforceMax(teamId: string): void {
    const excess = (this.#counts.get(teamId) ?? 0) - this.#options.entriesMax;
    if (excess > excessMax) this.#subtract(teamId, this.#options.rows.removeOldest(teamId, excess));
  }

  #subtract(teamId: string, count: number): void {
    this.#counts.set(teamId, (this.#counts.get(teamId) ?? 0) - count);
  }

  /** A failure is not thrown: on a full disk it must stay possible to destroy a capsule. */
  #try(write: () => void): void {
    try {
      write();
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
