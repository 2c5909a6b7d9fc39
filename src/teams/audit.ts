/**
 * The audit log: which key did what to which capsule, when, and with what status. Entries are buffered for at most a second
 * and written in one transaction; durable ones are flushed before their request is answered.
 */
import type { AppendedRow, AuditQuery, AuditRow, AuditRows, NewAuditRow } from "../db/audit-rows.ts";
import { AuditShares } from "./audit-shares.ts";
import { type JoinableEntry, JoinedEntries } from "./joined-entries.ts";

export type AuditEntry = JoinableEntry;

/**
 * Which entries of a minute are joined to one. `read`: the same read with the same answer, without a number. `refused`: requests of a
 * key with the same action and status, with their number. `failed`: as those, of one capsule; the request was permitted.
 */
export type AuditJoining = "read" | "refused" | "failed";

export interface AuditOptions {
  rows: AuditRows;
  /** Epoch milliseconds, and monotonic ones. */
  clock: { now(): number; ticks(): number };
  /** Entries of one team. */
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

/** Adds the exit code of the entry's command. Later calls change nothing. Never throws. */
export type AddExitCode = (exitCode: number) => void;

/** `id`: that of its row, once it is written. */
type WaitingRow = NewAuditRow & { id?: number };

type AppendRows = (rows: readonly NewAuditRow[], exitCodes: ReadonlyMap<number, number>) => AppendedRow[];

/** Number of buffered entries that triggers a flush. */
const waitingMax = 1_000;
/** Entries buffered while the database cannot be written. */
const unwrittenMax = 10_000;
/** How long the clock must have been set to a time before entries are removed for their age at that time. */
const clockTrialMs = 86_400_000;
const addressMaxLength = 64;
const capsuleIdMaxLength = 64;
const subjectMaxLength = 512;

export class Audit {
  readonly #options: AuditOptions;
  readonly #shares: AuditShares;
  readonly #reads: JoinedEntries;
  readonly #refusals: JoinedEntries;
  #waiting: WaitingRow[] = [];
  /** By ids of rows: codes of commands that ended after their entries were written. */
  #exitCodes = new Map<number, number>();
  /** A time that the clock has shown a day ago or earlier; undefined: none is known. */
  #trusted: number | undefined;
  /** The time that becomes the trusted one a day after it was read. */
  #trial: { now: number; ticks: number };

  constructor(options: AuditOptions) {
    const { rows, clock, entriesMax } = options;
    const ticks = () => clock.ticks();
    this.#options = options;
    this.#shares = new AuditShares(rows, entriesMax);
    this.#reads = new JoinedEntries({ isCounted: false, ticks });
    this.#refusals = new JoinedEntries({ isCounted: true, ticks });
    this.#trusted = rows.timeUntil(clock.now() - clockTrialMs);
    this.#trial = { now: clock.now(), ticks: clock.ticks() };
  }

  /**
   * The entry is on disk after the next `flush`. Long texts are cut. Never throws.
   */
  record(entry: AuditEntry, joined?: AuditJoining): void {
    const { keyId, action, status, capsuleId } = entry;
    const short = shortened(entry);
    if (joined === "refused") this.#push(this.#refusals.add([keyId, action, status], short));
    else if (joined === "failed") this.#push(this.#refusals.add([keyId, action, status, capsuleId], short));
    else if (joined === "read") this.#push(this.#reads.add(Object.values(entry), short));
    else this.#push([short]);
  }

  /** As `record`, of a command that has begun. */
  recordCommand(entry: AuditEntry): AddExitCode {
    const row: WaitingRow = { ...shortened(entry), at: this.#options.clock.now() };
    this.#wait(row);
    return (exitCode) => {
      row.exitCode ??= exitCode;
      if (row.id === undefined || this.#exitCodes.size >= unwrittenMax) return;
      this.#exitCodes.set(row.id, row.exitCode);
    };
  }

  #push(entries: readonly AuditEntry[]): void {
    for (const entry of entries) this.#wait({ ...entry, at: this.#options.clock.now() });
  }

  #wait(row: WaitingRow): void {
    this.#waiting.push(row);
    if (this.#waiting.length % waitingMax === 0) this.#try(() => this.#write(this.#appendSynced));
  }

  readonly #appendSynced: AppendRows = (rows, exitCodes) => this.#options.rows.append(rows, exitCodes);

  /**
   * All recorded entries are durable when this returns, but for those that `list` has written since the last commit. When it
   * throws, the entries stay buffered.
   */
  flush(): void {
    this.#push(this.#refusals.due());
    this.#write(this.#appendSynced);
  }

  /** As `flush`, with the numbers of refusals whose minute has not ended. */
  close(): void {
    this.#push(this.#refusals.drain());
    this.flush();
  }

  #write(append: AppendRows): void {
    const rows = this.#waiting;
    if (rows.length === 0 && this.#exitCodes.size === 0) return;
    const made = append(rows, this.#exitCodes);
    this.#waiting = [];
    this.#exitCodes = new Map();
    for (const [index, { id, kind }] of made.entries()) {
      const row = rows[index];
      if (row === undefined) continue;
      row.id = id;
      this.#shares.add(row.teamId, kind);
    }
    for (const teamId of new Set(rows.map((row) => row.teamId))) this.#shares.enforce(teamId);
  }

  /** With the entries that are not on disk yet. */
  list(teamId: string, query: AuditQuery): AuditPage {
    this.#try(() => this.#write((rows, exitCodes) => this.#options.rows.appendUnsynced(rows, exitCodes)));
    const rows = this.#options.rows.list(teamId, { ...query, limit: query.limit + 1 });
    const entries = rows.slice(0, query.limit);
    return { entries, next: rows.length > entries.length ? (entries.at(-1)?.id ?? null) : null };
  }

  /**
   * Removes a bounded number of entries older than `keepMs`. Call it periodically. A clock that was set ahead ages entries only when it
   * has stayed there for a day.
   */
  removeExpired(): void {
    const time = this.trustedTime();
    if (time !== undefined) this.#shares.removeBefore(time - this.#options.keepMs);
  }

  /**
   * Epoch milliseconds that the clock has shown a day ago or earlier, and not later than now; undefined while none is known. Ages are
   * counted to this time: a clock that was set ahead counts when it has stayed there for a day.
   */
  trustedTime(): number | undefined {
    const [now, ticks] = [this.#options.clock.now(), this.#options.clock.ticks()];
    if (ticks - this.#trial.ticks >= clockTrialMs) {
      this.#trusted = this.#trial.now;
      this.#trial = { now, ticks };
    }
    return this.#trusted === undefined ? undefined : Math.min(now, this.#trusted);
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

function shortened({ address, capsuleId, subject, ...entry }: AuditEntry): AuditEntry {
  return {
    ...entry,
    address: cut(address, addressMaxLength),
    capsuleId: capsuleId === null ? null : cut(capsuleId, capsuleIdMaxLength),
    subject: subject === null ? null : cut(subject, subjectMaxLength),
  };
}

function cut(text: string, maxLength: number): string {
  return text.length <= maxLength ? text : `${text.slice(0, maxLength - 1)}…`;
}
