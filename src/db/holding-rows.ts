/** The columns of capsules that a host of a cluster has beside their rows: epochs, releases that may be under way, moves, and uploads. */
import type { StatementSync } from "node:sqlite";
import { type Database, transact, withoutSync } from "./database.ts";
import { ReleasedRows } from "./released-rows.ts";

/** The columns of a capsule that CapsuleRow lacks, by their names: all that a host which acquires it needs of them. */
export interface KeptColumns {
  url_secret: Uint8Array | null;
  /** Sealed, as are the values of `inject`, under a key that all hosts have. */
  envs: Uint8Array | null;
  inject: string | null;
  port_secret: Uint8Array | null;
  connections: number;
  connections_denied: number;
  bytes_out: number;
  bytes_in: number;
}

const names = {
  ...{ url_secret: true, envs: true, inject: true, port_secret: true },
  ...{ connections: true, connections_denied: true, bytes_out: true, bytes_in: true },
} as const satisfies Record<keyof KeptColumns, true>;

export const keptNames = Object.keys(names) as (keyof KeptColumns)[];

/** Columns that are this host's alone: none of them is carried to another one. */
export const ownNames = ["sequence", "due_at", "epoch", "releasing", "moving"] as const;

/** A row with a release that may be under way. */
export interface ReleasingRow {
  id: string;
  epoch: number;
  releasing: string;
}

export class HoldingRows {
  readonly released: ReleasedRows;
  readonly #database: Database;
  readonly #epoch: StatementSync;
  readonly #releasing: StatementSync;
  readonly #allReleasing: StatementSync;
  readonly #setReleasing: StatementSync;
  readonly #kept: StatementSync;
  readonly #setKept: StatementSync;
  readonly #takeBack: StatementSync;
  readonly #setEpoch: StatementSync;
  readonly #moving: StatementSync;
  readonly #allMoving: StatementSync;
  readonly #setMoving: StatementSync;
  readonly #note: StatementSync;
  readonly #uploads: StatementSync;
  readonly #forget: StatementSync;
  readonly #unreleased: StatementSync;

  constructor(database: Database) {
    this.#database = database;
    this.released = new ReleasedRows(database);
    this.#epoch = database.prepare("SELECT epoch FROM capsules WHERE id = ?");
    this.#releasing = database.prepare("SELECT releasing FROM capsules WHERE id = ?");
    this.#allReleasing = database.prepare("SELECT id, epoch, releasing FROM capsules WHERE releasing IS NOT NULL");
    this.#setReleasing = database.prepare(
      `UPDATE capsules SET releasing = :releasing WHERE id = :id AND generation = :revision
         AND status = 'paused' AND intent IS NULL AND releasing IS NULL`,
    );
    this.#kept = database.prepare(`SELECT ${keptNames.join(", ")} FROM capsules WHERE id = ?`);
    this.#setKept = database.prepare(
      `UPDATE capsules SET ${keptNames.map((name) => `${name} = :${name}`).join(", ")} WHERE id = :id`,
    );
    this.#takeBack = database.prepare(
      "UPDATE capsules SET releasing = NULL, generation = MAX(generation, ?) WHERE id = ? AND intent IS NULL",
    );
    this.#setEpoch = database.prepare("UPDATE capsules SET epoch = ?, releasing = NULL, moving = ? WHERE id = ?");
    this.#moving = database.prepare("SELECT moving FROM capsules WHERE id = ?");
    this.#allMoving = database.prepare("SELECT id FROM capsules WHERE moving IS NOT NULL");
    this.#setMoving = database.prepare("UPDATE capsules SET moving = ? WHERE id = ?");
    this.#unreleased = database.prepare(
      `SELECT COUNT(*) AS count, MIN(last_updated) FILTER (WHERE blocked_by IS NULL) AS since
       FROM capsules WHERE status = 'paused' AND intent IS NULL`,
    );
    this.#note = database.prepare("INSERT OR IGNORE INTO uploads (prefix, noted_at) VALUES (?, ?)");
    this.#uploads =
      database.prepare(`SELECT prefix FROM uploads u WHERE NOT EXISTS (SELECT 1 FROM released r WHERE r.prefix = u.prefix)
       ORDER BY noted_at, prefix LIMIT ?`);
    this.#forget = database.prepare("DELETE FROM uploads WHERE prefix = ?");
  }

  /** 1 where there is no row: that of a create. */
  epoch(id: string): number {
    return (this.#epoch.get(id) as { epoch: number } | undefined)?.epoch ?? 1;
  }

  /** null: none is under way, or there is no such row. */
  releasing(id: string): string | null {
    return (this.#releasing.get(id) as { releasing: string | null } | undefined)?.releasing ?? null;
  }

  allReleasing(): ReleasingRow[] {
    return this.#allReleasing.all() as unknown as ReleasingRow[];
  }

  /** Durable when this returns true. False: the row has another revision, is not paused, or is being released. */
  setReleasing(id: string, revision: number, releasing: string): boolean {
    return this.#setReleasing.run({ id, revision, releasing }).changes === 1;
  }

  /** No release of the capsule, which no change is under way of, counts any longer, and its row has at least this revision. Durable. */
  takeBack(id: string, revision: number): void {
    this.#takeBack.run(revision, id);
  }

  /** Undefined: there is no such row. */
  kept(id: string): KeptColumns | undefined {
    return this.#kept.get(id) as KeptColumns | undefined;
  }

  /** Whether the capsule was running, and is paused for a move. */
  isMoving(id: string): boolean {
    return (this.#moving.get(id) as { moving: number | null } | undefined)?.moving === 1;
  }

  allMoving(): string[] {
    return (this.#allMoving.all() as { id: string }[]).map(({ id }) => id);
  }

  /** In a transaction of the caller's, or one of its own. */
  setMoving(id: string, isMoving: boolean): void {
    this.#setMoving.run(isMoving ? 1 : null, id);
  }

  /** The capsule is held with this epoch, and no release of it counts any longer. In a transaction of the caller's, or one of its own. */
  hold(id: string, epoch: number, kept?: KeptColumns, isMoving = false): void {
    this.#setEpoch.run(epoch, isMoving ? 1 : null, id);
    if (kept !== undefined) this.#setKept.run({ id, ...kept });
  }

  /** Durable when this returns: before the first object of the prefix is written. */
  noteUpload(prefix: string, atMs: number): void {
    this.#note.run(prefix, atMs);
  }

  /** But for those that a release of the last day names. Oldest first. */
  uploads(most: number): string[] {
    return (this.#uploads.all(most) as { prefix: string }[]).map(({ prefix }) => prefix);
  }

  /** Paused capsules, and when the first of those was paused whose templates were not deleted; null: there is none. No other one leaves. */
  unreleased(): { count: number; since: number | null } {
    return { ...(this.#unreleased.get() as { count: number; since: number | null }) };
  }

  /** In one unsynced commit. */
  forgetUploads(prefixes: readonly string[]): void {
    const forget = () => {
      for (const prefix of prefixes) this.#forget.run(prefix);
    };
    withoutSync(this.#database, () => transact(this.#database, forget));
  }
}
