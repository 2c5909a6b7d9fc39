/** Lists of a team's capsules over all hosts, from PostgreSQL; those of this host as its own rows are at this moment. */
import { type Conditions, type Part, readPage } from "../capsules/pages.ts";
import type { Capsule, CapsulePage, CapsuleStore } from "../capsules/store.ts";
import { type CapsuleView, type ViewTurn, viewOf } from "../capsules/view.ts";
import type { Postgres } from "./postgres.ts";
import { rowSelection } from "./rows.ts";
import { liveRow } from "./schema/tables.ts";

export interface ListingOptions {
  sql: Postgres;
  host: string;
  store: Pick<CapsuleStore, "get" | "wasDestroyed">;
  /** As the host itself shows it. */
  viewOfOwn: (row: Capsule) => CapsuleView;
}

type ListedRow = Capsule & { sequence: number; host: string | null };

/** Bounds of one statement. */
const [rowsMax, textMaxBytes] = [200, 1 << 20];
const what = { what: "list capsules" };

export class Listing {
  readonly #options: ListingOptions;

  constructor(options: ListingOptions) {
    this.#options = options;
  }

  /** As Capsules.find. Throws "unavailable". */
  async *find(teamId: string, conditions: Conditions, part: Part): AsyncGenerator<ViewTurn, number | undefined> {
    const turns = readPage({ page: (team, before) => this.#page(team, before) }, teamId, conditions, part);
    for (;;) {
      const { done, value } = await turns.next();
      if (done) return value;
      yield { items: value.rows.map((row) => this.#view(row as ListedRow)), seen: value.seen };
    }
  }

  /** The use of a team's quotas, but for its disk, which each host measures for itself. */
  async usage(
    teamId: string,
  ): Promise<{ capsules: number; runningVcpus: number; runningMemoryMb: number; templates: number }> {
    const [row] = await this.#options.sql.query<Awaited<ReturnType<Listing["usage"]>>>(
      `SELECT COUNT(*) AS capsules, COALESCE(SUM(vcpus) FILTER (WHERE ${liveRow}), 0)::bigint AS "runningVcpus",
         COALESCE(SUM(memory_mb) FILTER (WHERE ${liveRow}), 0)::bigint AS "runningMemoryMb",
         (SELECT COUNT(*) FROM templates WHERE team_id = $1 AND retired_at IS NULL) AS templates
       FROM capsules WHERE team_id = $1`,
      [teamId],
      { what: "count capsules" },
    );
    return row!;
  }

  async #page(teamId: string, before: number): Promise<CapsulePage> {
    const { sql, host, store } = this.#options;
    const rows = await sql.query<ListedRow & { bytes: number; found: number }>(
      `SELECT * FROM (
         SELECT *, SUM(own) OVER (ORDER BY sequence DESC) - own AS bytes, COUNT(*) OVER () AS found FROM (
           SELECT ${rowSelection}, seq AS sequence, host, length(labels) + COALESCE(length(network), 0) AS own
           FROM capsules WHERE team_id = $1 AND seq < $2 ORDER BY seq DESC LIMIT ${rowsMax}) page) sized
       WHERE bytes < ${textMaxBytes} ORDER BY sequence DESC`,
      [teamId, before],
      what,
    );
    const isLast = rows.length === (rows[0]?.found ?? 0) && rows.length < rowsMax;
    const current = rows.map((row): ListedRow => {
      if (row.host !== host) return row;
      const own = store.get(row.id);
      if (own !== undefined) return { ...own, sequence: row.sequence, host };
      // It was destroyed while the rows were read; otherwise it is being brought here, or has just left.
      return store.wasDestroyed(row.id) ? { ...row, intent: "destroy" } : row;
    });
    return { rows: current, isLast };
  }

  #view({ sequence: _, host, ...row }: ListedRow): CapsuleView {
    if (host === this.#options.host && !("found" in row)) return { ...this.#options.viewOfOwn(row), host };
    return { ...viewOfRemote(row), host };
  }
}

/** The last activity is that of the last copy. */
export function viewOfRemote(row: Capsule & Record<string, unknown>): CapsuleView {
  const { bytes: _bytes, found: _found, own: _own, ...capsule } = row;
  return viewOf(capsule as Capsule, undefined);
}
