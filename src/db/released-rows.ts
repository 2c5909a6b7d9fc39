/**
 * Releases of this host of the last day. A database that was put back may have forgotten them, and their checkpoints are in the bucket
 * alone (docs/adr/0125).
 */
import type { StatementSync } from "node:sqlite";
import { type Database, transact, withoutSync } from "./database.ts";

export interface ReleasedRow {
  id: string;
  /** With which the host had held it. */
  epoch: number;
  /** The row that the release has sent, a JSON object. */
  columns: string;
}

/** The part of the columns by which a release is found, and told from others. */
interface Named {
  revision: number;
  checkpoint: string;
  checkpoint_sha256: string;
}

export interface PageBounds {
  rows: number;
  textBytes: number;
}

/** As the tombstones that are told. */
const keepMs = 86_400_000;
/** All columns together, the oldest go first: some 40 000 releases. */
const keptMaxBytes = 128 << 20;
/** More than one note adds. */
const forgottenAtOnce = 100;

export class ReleasedRows {
  readonly #database: Database;
  readonly #note: StatementSync;
  readonly #forgetUpload: StatementSync;
  readonly #forgetOld: StatementSync;
  readonly #forgetMost: StatementSync;
  readonly #page: StatementSync;

  constructor(database: Database) {
    this.#database = database;
    this.#note = database.prepare(
      `INSERT OR REPLACE INTO released (id, epoch, revision, prefix, manifest_sha256, columns, released_at, ends_at)
       VALUES (:id, :epoch, :revision, :prefix, :sha256, :columns, :atMs, :bytes + (SELECT COALESCE(MAX(ends_at), 0) FROM released))`,
    );
    this.#forgetUpload = database.prepare("DELETE FROM uploads WHERE prefix = ?");
    this.#forgetOld = database.prepare(
      `DELETE FROM released WHERE rowid IN
         (SELECT rowid FROM released WHERE released_at < ? ORDER BY released_at LIMIT ${forgottenAtOnce})`,
    );
    this.#forgetMost = database.prepare(
      `DELETE FROM released WHERE rowid IN
         (SELECT rowid FROM released WHERE ends_at <= (SELECT MAX(ends_at) FROM released) - ? ORDER BY ends_at LIMIT ${forgottenAtOnce})`,
    );
    this.#page = database.prepare(
      `SELECT id, epoch, columns FROM released WHERE (id, epoch) > (:id, :epoch) AND released_at >= :sinceMs
       ORDER BY id, epoch LIMIT :rows`,
    );
  }

  /**
   * The bucket has it, and PostgreSQL has answered: its upload is no longer one that may have failed. In one commit, durable with the next
   * synced one.
   */
  note({ id, epoch, columns }: ReleasedRow, atMs: number, mostBytes = keptMaxBytes): void {
    const { revision, checkpoint: prefix, checkpoint_sha256: sha256 } = JSON.parse(columns) as Named;
    const note = () => {
      this.#note.run({ id, epoch, revision, prefix, sha256, columns, atMs, bytes: Buffer.byteLength(columns) });
      this.#forgetUpload.run(prefix);
      this.#forgetOld.run(atMs - keepMs);
      this.#forgetMost.run(mostBytes);
    };
    withoutSync(this.#database, () => transact(this.#database, note));
  }

  /** A page of the last day's releases behind `after`, by id and epoch. A row alone may exceed the bytes. */
  page(nowMs: number, after: Pick<ReleasedRow, "id" | "epoch"> | undefined, { rows, textBytes }: PageBounds) {
    const { id, epoch } = after ?? { id: "", epoch: 0 };
    const page: ReleasedRow[] = [];
    let bytes = 0;
    for (const row of this.#page.iterate({ id, epoch, sinceMs: nowMs - keepMs, rows })) {
      page.push(row as unknown as ReleasedRow);
      bytes += String(row.columns).length;
      if (bytes >= textBytes) break;
    }
    return page;
  }
}
