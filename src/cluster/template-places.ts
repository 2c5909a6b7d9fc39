/**
 * The hosts that have the files of the teams' templates: a bounded map that follows the catalog, and PostgreSQL for what it lacks. A
 * template's files are on the host that captured it.
 */
import type { TemplateRows } from "../db/template-rows.ts";
import type { Postgres } from "./postgres.ts";
import { findTemplate } from "./shared.ts";

export interface TemplatePlacesOptions {
  sql: Postgres;
  host: string;
  /** Templates whose files are here. */
  own: Pick<TemplateRows, "named">;
}

export interface Placed {
  storage: string;
  host: string;
}

interface Changed extends Placed {
  teamId: string;
  name: string;
  isRetired: boolean;
}

const entriesMax = 100_000;

export class TemplatePlaces {
  readonly #options: TemplatePlacesOptions;
  /** The name read last is at the end. */
  readonly #known = new Map<string, Placed>();
  /** Another one whenever changes were noted. */
  #generation = 0;

  constructor(options: TemplatePlacesOptions) {
    this.#options = options;
  }

  /** Reads what the catalog has above this number. */
  async follow(after: number): Promise<void> {
    const rows = await this.#options.sql.query<Changed>(
      `SELECT storage, team_id AS "teamId", name, made_on AS host, retired_at IS NOT NULL AS "isRetired"
       FROM templates WHERE catalog > $1 AND ($1 > 0 OR retired_at IS NULL) ORDER BY catalog DESC LIMIT ${entriesMax}`,
      [after],
      { what: "read the templates" },
    );
    this.#generation += 1;
    // Names that were not read are looked up one by one.
    if (after === 0 || rows.length === entriesMax) this.#known.clear();
    for (const { teamId, name, storage, host, isRetired } of rows.toReversed()) {
      const entry = entryOf(teamId, name);
      if (!isRetired) this.#note(entry, { storage, host });
      else if (this.#known.get(entry)?.storage === storage) this.#known.delete(entry);
    }
  }

  /** The host to ask first, as far as it can be told without a statement. */
  known(teamId: string, name: string): string | undefined {
    const { own, host } = this.#options;
    return own.named(teamId, name) === undefined ? this.placed(teamId, name)?.host : host;
  }

  /** The host that has made it, by the last catalog. */
  placed(teamId: string, name: string): Placed | undefined {
    return this.#known.get(entryOf(teamId, name));
  }

  /** By PostgreSQL. Undefined: the team has no such template. Throws "unavailable". */
  async find(teamId: string, name: string): Promise<Placed | undefined> {
    const generation = this.#generation;
    const found = await findTemplate(this.#options.sql, teamId, name);
    // An answer from before a change that was noted meanwhile may be what that one has replaced.
    if (found !== undefined && this.#generation === generation) this.#note(entryOf(teamId, name), found);
    return found;
  }

  #note(entry: string, placed: Placed): void {
    this.#known.delete(entry);
    this.#known.set(entry, placed);
    if (this.#known.size > entriesMax) this.#known.delete(this.#known.keys().next().value!);
  }
}

function entryOf(teamId: string, name: string): string {
  return `${teamId}/${name}`;
}
