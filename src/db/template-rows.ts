/**
 * Snapshot template rows. A template's files are named by its storage id, and only its row has its name. Overwriting or
 * deleting a template retires the row; its files are removed when no capsule needs them. Storage ids are noted when a capture
 * begins and when a row is removed: a folder of such an id is known without a row.
 */
import type { StatementSync } from "node:sqlite";
import { type Database, transact } from "./database.ts";

/** Times are epoch milliseconds. */
export interface TemplateRow {
  storage: string;
  teamId: string;
  name: string;
  vcpus: number;
  memoryMb: number;
  /** Size of the disk; 0: not known. */
  diskMb: number;
  /** 1: its agent can make its file system larger. */
  canGrow: number;
  sizeBytes: number;
  createdAt: number;
  /** When it was deleted or overwritten. */
  retiredAt: number | null;
}

const selection = `storage, team_id AS teamId, name, vcpus, memory_mb AS memoryMb, disk_mb AS diskMb, can_grow AS canGrow, size_bytes AS sizeBytes,
  created_at AS createdAt, retired_at AS retiredAt FROM templates`;

export class TemplateRows {
  readonly #database: Database;
  readonly #named: StatementSync;
  readonly #ofTeam: StatementSync;
  readonly #insert: StatementSync;
  readonly #retire: StatementSync;
  readonly #retired: StatementSync;
  readonly #remove: StatementSync;
  readonly #setDiskSize: StatementSync;
  readonly #all: StatementSync;
  readonly #sizes: StatementSync;
  readonly #note: StatementSync;
  readonly #isNoted: StatementSync;
  readonly #forget: StatementSync;

  constructor(database: Database) {
    this.#database = database;
    this.#named = database.prepare(`SELECT ${selection} WHERE team_id = ? AND name = ? AND retired_at IS NULL`);
    this.#ofTeam = database.prepare(
      `SELECT ${selection} WHERE team_id = ? AND retired_at IS NULL ORDER BY created_at DESC, rowid DESC`,
    );
    this.#insert = database.prepare(
      `INSERT INTO templates (storage, team_id, name, vcpus, memory_mb, disk_mb, can_grow, size_bytes, created_at, retired_at)
       VALUES (:storage, :teamId, :name, :vcpus, :memoryMb, :diskMb, :canGrow, :sizeBytes, :createdAt, :retiredAt)`,
    );
    this.#retire = database.prepare("UPDATE templates SET retired_at = ? WHERE storage = ? AND retired_at IS NULL");
    this.#retired = database.prepare(`SELECT ${selection} WHERE retired_at IS NOT NULL`);
    this.#remove = database.prepare("DELETE FROM templates WHERE storage = ?");
    this.#sizes = database.prepare(
      `SELECT COUNT(*) FILTER (WHERE retired_at IS NULL) AS named, COALESCE(SUM(size_bytes), 0) AS bytes
       FROM templates WHERE team_id = ?`,
    );
    this.#setDiskSize = database.prepare("UPDATE templates SET disk_mb = ? WHERE storage = ?");
    this.#all = database.prepare(`SELECT ${selection}`);
    this.#note = database.prepare("INSERT OR REPLACE INTO storages (storage, noted_at) VALUES (?, ?)");
    this.#isNoted = database.prepare("SELECT 1 FROM storages WHERE storage = ?");
    this.#forget = database.prepare("DELETE FROM storages WHERE noted_at < ?");
  }

  named(teamId: string, name: string): TemplateRow | undefined {
    return this.#named.get(teamId, name) as TemplateRow | undefined;
  }

  /** Newest first. */
  ofTeam(teamId: string): TemplateRow[] {
    return this.#ofTeam.all(teamId) as unknown as TemplateRow[];
  }

  /** The number of the team's named templates, and the bytes of all its templates whose files exist. */
  sizes(teamId: string): { named: number; bytes: number } {
    return { ...(this.#sizes.get(teamId) as { named: number; bytes: number }) };
  }

  all(): TemplateRow[] {
    return this.#all.all() as unknown as TemplateRow[];
  }

  retired(): TemplateRow[] {
    return this.#retired.all() as unknown as TemplateRow[];
  }

  insert({ retiredAt = null, ...row }: Omit<TemplateRow, "retiredAt"> & Partial<TemplateRow>): void {
    this.#insert.run({ ...row, retiredAt });
  }

  retire(storage: string, atMs: number): void {
    this.#retire.run(atMs, storage);
  }

  setDiskSize(storage: string, diskMb: number): void {
    this.#setDiskSize.run(diskMb, storage);
  }

  /** The storage id stays noted. */
  remove(storage: string, atMs: number): void {
    transact(this.#database, () => {
      this.#note.run(storage, atMs);
      this.#remove.run(storage);
    });
  }

  /** Call in the transaction that records the intent of a capture into this storage. */
  note(storage: string, atMs: number): void {
    this.#note.run(storage, atMs);
  }

  isNoted(storage: string): boolean {
    return this.#isNoted.get(storage) !== undefined;
  }

  /** Forgets the storage ids that were noted before. */
  forgetNoted(beforeMs: number): void {
    this.#forget.run(beforeMs);
  }
}
