/**
 * Folders of released capsules that this host keeps, since it may be the one that resumes them. They go when their row is gone or names
 * another checkpoint, and the least recently used ones when all are too large together.
 */
import type { Postgres } from "./postgres.ts";

export interface ReleasedFolder {
  name: string;
  id: string;
  /** The epoch of the row that was released, and the revision of its checkpoint. */
  epoch: number;
  revision: number;
  bytes: number;
}

/** The folders of this host. */
export interface ReleasedFolders {
  /** The least recently used first. */
  cached(): Promise<ReleasedFolder[]>;
  drop(name: string): Promise<void>;
}

export interface ReleasedCacheOptions {
  sql: Pick<Postgres, "query">;
  host: string;
  folders: ReleasedFolders;
  bytesMax: number;
}

interface Row {
  id: string;
  host: string | null;
  checkpoint: string | null;
  /** That of the saved files. */
  revision: string | null;
}

/** Rows of one statement. */
const rowsMax = 1_000;

export class ReleasedCache {
  readonly #options: ReleasedCacheOptions;

  constructor(options: ReleasedCacheOptions) {
    this.#options = options;
  }

  /** Keeps within the size. Needs no database. */
  async trim(): Promise<void> {
    const { folders, bytesMax } = this.#options;
    const cached = await folders.cached();
    let bytes = cached.reduce((sum, each) => sum + each.bytes, 0);
    for (const { name, bytes: own } of cached) {
      if (bytes <= bytesMax) return;
      await folders.drop(name);
      bytes -= own;
    }
  }

  /** Removes what no row can be resumed from. Throws "unavailable". */
  async reconcile(): Promise<void> {
    const { folders, host } = this.#options;
    const cached = await folders.cached();
    for (let at = 0; at < cached.length; at += rowsMax) {
      const part = cached.slice(at, at + rowsMax);
      const rows = await this.#rows(part.map(({ id }) => id));
      for (const folder of part) {
        const row = rows.get(folder.id);
        // This host has acquired it, and may be bringing the folder back.
        if (row !== undefined && (row.host === host || isOf(row, folder))) continue;
        await folders.drop(folder.name);
      }
    }
  }

  async #rows(ids: string[]): Promise<Map<string, Row>> {
    const rows = await this.#options.sql.query<Row>(
      "SELECT id, host, checkpoint, record ->> 'revision' AS revision FROM capsules WHERE id = ANY($1)",
      [ids],
      { what: "compare released folders with their rows" },
    );
    return new Map(rows.map((row) => [row.id, row]));
  }
}

/** Whether the row is released with the checkpoint of this folder. */
function isOf(row: Row, { id, epoch, revision }: ReleasedFolder): boolean {
  const isCurrent = row.checkpoint?.startsWith(`capsules/${id}/${epoch}.`) === true;
  return row.host === null && isCurrent && row.revision === String(revision);
}
