/** Templates whose files were fetched: this host gets a row of each, as if it had made them, and so removes the files when they are unused. */
import type { Clock } from "../capsules/clock.ts";
import type { TemplateRow, TemplateRows } from "../db/template-rows.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Postgres } from "./postgres.ts";

export interface FetchedTemplatesOptions {
  sql: Postgres;
  rows: Pick<TemplateRows, "all" | "named" | "insert" | "retire" | "note">;
  clock: Pick<Clock, "now">;
  /** Files without a row are not removed until the result is disposed of. */
  hold: (storage: string) => Disposable;
}

const attempts = 5;

export class FetchedTemplates {
  readonly #options: FetchedTemplatesOptions;

  constructor(options: FetchedTemplatesOptions) {
    this.#options = options;
  }

  hold(storage: string): Disposable {
    return this.#options.hold(storage);
  }

  /** Its files are about to come: from here on a folder without a row is explained. */
  expect(storage: string): void {
    this.#options.rows.note(storage, this.#options.clock.now());
  }

  /** Its files are here. Throws "unavailable". */
  async put(storage: string): Promise<void> {
    const { rows } = this.#options;
    for (let left = attempts; left > 0; left--) {
      if (rows.all().some((each) => each.storage === storage)) return;
      if (!this.#insert(await this.#read(storage))) continue;
      // A retirement of before is seen here, a later one by the catalog, which asks for this row too.
      const { retiredAt } = await this.#read(storage);
      if (retiredAt !== null) rows.retire(storage, retiredAt);
      return;
    }
    throw new CapsuleError("unavailable", `template ${storage} is being replaced all the time`);
  }

  /** False: the name has another template here, about which PostgreSQL was not asked. */
  #insert({ otherStorage, otherRetiredAt, ...row }: Read): boolean {
    const { rows } = this.#options;
    const other = rows.named(row.teamId, row.name);
    if (other !== undefined && row.retiredAt === null) {
      if (other.storage !== otherStorage || otherRetiredAt === null) return false;
      rows.retire(other.storage, otherRetiredAt);
    }
    rows.insert(row);
    return true;
  }

  async #read(storage: string): Promise<Read> {
    const { sql, rows } = this.#options;
    const mine = rows.all().filter(({ retiredAt }) => retiredAt === null);
    const [row] = await sql.query<Read & Record<string, unknown>>(
      `SELECT t.storage, t.team_id AS "teamId", t.name, t.vcpus, t.memory_mb AS "memoryMb", t.disk_mb AS "diskMb", t.can_grow AS "canGrow",
         t.size_bytes AS "sizeBytes", t.created_at AS "createdAt", t.retired_at AS "retiredAt",
         o.storage AS "otherStorage", o.retired_at AS "otherRetiredAt"
       FROM templates t LEFT JOIN templates o
         ON o.team_id = t.team_id AND o.name = t.name AND o.storage <> t.storage AND o.storage = ANY($2)
       WHERE t.storage = $1`,
      [storage, mine.map((each) => each.storage)],
      { what: "read a template" },
    );
    if (row === undefined) throw new CapsuleError("unavailable", `there is no template ${storage}`);
    return row;
  }
}

interface Read extends TemplateRow {
  /** This host's template of the same name, where it has another one, and when that was retired. */
  otherStorage: string | null;
  otherRetiredAt: number | null;
}
