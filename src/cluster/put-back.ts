/** The confirmation of a database that was put back, by its operator. */
import type { Postgres } from "./postgres.ts";

/** One thing that a host has told the database, which had forgotten it. */
export interface Assertion {
  /** `team`, `destroyed`, `held`, `released` or `template`. */
  what: string;
  id: string;
  host: string;
}

export interface Confirmation {
  /** `own`: there is nothing to confirm; `other`: not yet. */
  was: "own" | "other" | "confirmed";
  /** Hosts that have not told what they hold. */
  silent: string[];
  changes: Assertion[];
}

/** From then on the hosts decide again. Nothing is confirmed while a host is silent. */
export async function confirmPlace(sql: Postgres): Promise<Confirmation> {
  const about = { what: "confirm the database" };
  const { place, was, silent } = await sql.call<{ place: string; was: Confirmation["was"]; silent?: string[] }>(
    "confirm_place",
    [],
    about,
  );
  const changes = await sql.query<Assertion>(
    "SELECT what, id, host FROM assertions WHERE place = $1 ORDER BY what, id",
    [place],
    about,
  );
  return { was, silent: silent ?? [], changes };
}
