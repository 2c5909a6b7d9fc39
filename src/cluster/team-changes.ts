/**
 * Changes of a team's capsules and templates on all hosts, for its streams of events: asked for twice a second for teams that listen, and
 * after each status copy of this host. A change has the team's version, which is locked until its commit: what is above the last one read
 * has not been read yet. So a stream goes on at any host behind the position that it has reached at another one.
 */
import type { Capsule } from "../capsules/store.ts";
import type { CapsuleView } from "../capsules/view.ts";
import type { Opened, SharedChange } from "../http/services.ts";
import type { Log } from "../log.ts";
import { Unanswered } from "./failures.ts";
import { viewOfRemote } from "./listing.ts";
import { changesStatement, compare, endOf, type Position, positionOf, textOf } from "./positions.ts";
import type { Postgres } from "./postgres.ts";
import type { RemoteTemplate } from "./shared.ts";

export interface TeamChangesOptions {
  sql: Postgres;
  log: Log;
}

const pollMs = 500;
/** Rows of one statement; labels and network of a capsule have up to 190 KiB. */
const rowsMax = 100;
/** Rows of one that a client's id asks for: what is too much for it is known after 3 MB at the latest. */
const missedRowsMax = 16;
/** A client that has missed more lists again. */
const missedMax = { changes: 256, bytes: 1 << 18 };
const what = { what: "follow the changes of a team" };

interface Followed {
  position: Position;
  /** Versions below it were given before the database was put back, and may name other changes than they did. */
  versionMin: number;
  streams: number;
  /** Resolves when no client reads what it has missed: one of a team does so at a time. */
  read: Promise<void>;
}

interface Row extends Position {
  kind: SharedChange["kind"];
  data: Record<string, unknown>;
}

type Listener = (teamId: string, id: string, change: SharedChange) => void;

export class TeamChanges {
  readonly #options: TeamChangesOptions;
  readonly #teams = new Map<string, Followed>();
  readonly #listeners = new Set<Listener>();
  #timer: NodeJS.Timeout | undefined;
  #polling: Promise<void> | undefined;
  #isClosed = false;

  constructor(options: TeamChangesOptions) {
    this.#options = options;
  }

  onChange(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /**
   * `begin` is called with the changes behind `lastId`; each later one is told until its `end` is called. Rejects with "unavailable", or
   * the error of `begin`.
   */
  async open<T>(teamId: string, lastId: string | undefined, begin: (opened: Opened) => T): Promise<T> {
    const followed = await this.#follow(teamId);
    let isEnded = false;
    const end = () => {
      if (!isEnded) this.#unfollow(teamId, followed);
      isEnded = true;
    };
    const { promise, resolve } = Promise.withResolvers<void>();
    const before = followed.read;
    followed.read = before.then(() => promise);
    try {
      if (lastId !== undefined) await before;
      let at = lastId === undefined ? undefined : positionOf(lastId);
      if (at !== undefined && compare(at, followed.position) > 0) await this.poll(); // another host has read further
      if (at !== undefined && at.version < followed.versionMin) at = undefined;
      const missed: Row[] = [];
      while (at !== undefined && compare(at, followed.position) !== 0) {
        const until = followed.position;
        const page: Row[] = compare(at, until) > 0 ? [] : await this.#page(teamId, at, until, missedRowsMax);
        missed.push(...page);
        const isLast = page.length < missedRowsMax;
        at = isMuch(missed) || compare(at, until) > 0 ? undefined : isLast ? until : page.at(-1)!;
      }
      // In the turn in which its position is the team's: no change is told twice or left out.
      const { position } = followed;
      return begin({ id: textOf(position), missed: at === undefined ? undefined : told(missed, position), end });
    } catch (error) {
      end();
      throw error;
    } finally {
      resolve();
    }
  }

  /** Reads at once what this host has just written. */
  soon(): void {
    if (this.#teams.size > 0) void this.poll();
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.#teams.clear();
  }

  /** Tells what has changed since the last call. Resolves also when the database is away: the next call tells it. */
  async poll(): Promise<void> {
    await this.#polling; // which may have begun before the change
    this.#polling ??= this.#read()
      .catch((error: unknown) => {
        const { sql, log } = this.#options;
        if (!sql.isAway) log.error({ err: error }, "changes of a team could not be read");
      })
      .finally(() => {
        this.#polling = undefined;
      });
    await this.#polling;
  }

  async #follow(teamId: string): Promise<Followed> {
    const [row] = this.#teams.has(teamId) ? [] : await this.#versions([teamId]);
    const { version, versionMin } = row ?? { version: 0, versionMin: 0 };
    const begun = { position: endOf(version), versionMin, streams: 0, read: Promise.resolve() };
    const followed = this.#teams.get(teamId) ?? begun;
    this.#teams.set(teamId, followed);
    followed.streams += 1;
    this.#schedule();
    return followed;
  }

  #unfollow(teamId: string, followed: Followed): void {
    followed.streams -= 1;
    if (followed.streams === 0 && this.#teams.get(teamId) === followed) this.#teams.delete(teamId);
  }

  #schedule(): void {
    if (this.#timer !== undefined || this.#teams.size === 0 || this.#isClosed) return;
    this.#timer = setTimeout(() => {
      void this.poll().finally(() => {
        this.#timer = undefined;
        this.#schedule();
      });
    }, pollMs).unref();
  }

  /** A team's version is read first: all changes up to it are committed then, and a row that changes later gets a higher one. */
  async #read(): Promise<void> {
    if (this.#teams.size === 0) return;
    for (const { id, version, versionMin } of await this.#versions([...this.#teams.keys()])) {
      const followed = this.#teams.get(id);
      if (followed === undefined) continue;
      followed.versionMin = versionMin;
      const isForgotten = version < followed.position.version || followed.position.version < versionMin;
      if (isForgotten || !(await this.#hasRead(id, followed, version))) {
        followed.position = endOf(version);
        this.#tell(id, textOf(followed.position), { kind: "reset" });
      }
    }
  }

  /** False: a row of the team is none that a host has written. Its clients list anew, and other teams are told all the same. */
  async #hasRead(teamId: string, followed: Followed, version: number): Promise<boolean> {
    try {
      await this.#readTeam(teamId, followed, endOf(version)); // it may have stopped within this version
      return true;
    } catch (error) {
      if (error instanceof Unanswered) throw error;
      this.#options.log.error(
        { err: error, team: teamId },
        "changes of a team could not be told: its clients list anew",
      );
      return false;
    }
  }

  async #readTeam(teamId: string, followed: Followed, until: Position): Promise<void> {
    while (compare(followed.position, until) < 0) {
      const page = await this.#page(teamId, followed.position, until, rowsMax);
      if (this.#teams.get(teamId) !== followed) return; // its last stream has ended; a new one may be further
      followed.position = page.length < rowsMax ? until : page.at(-1)!;
      for (const { id, change } of told(page, followed.position)) this.#tell(teamId, id, change);
    }
  }

  #tell(teamId: string, id: string, change: SharedChange): void {
    for (const listener of this.#listeners) listener(teamId, id, change);
  }

  async #versions(teamIds: readonly string[]): Promise<{ id: string; version: number; versionMin: number }[]> {
    return await this.#options.sql.query(
      `SELECT id, version, version_min AS "versionMin" FROM teams WHERE id = ANY($1)`,
      [teamIds],
      what,
    );
  }

  /** Changes behind `after` up to `until`, in their order. */
  async #page(teamId: string, after: Position, until: Position, rows: number): Promise<Row[]> {
    const values = [teamId, after.version, after.mark, until.version, until.mark, rows];
    return await this.#options.sql.query<Row>(changesStatement, values, what);
  }
}

function isMuch(rows: readonly Row[]): boolean {
  const bytes = rows.reduce(
    (sum, { data }) => sum + String(data.labels ?? "").length + String(data.network ?? "").length,
    0,
  );
  return rows.length > missedMax.changes || bytes > missedMax.bytes;
}

/** With the position behind each; `end`: behind all of them. */
function told(rows: readonly Row[], end: Position): { id: string; change: SharedChange }[] {
  return rows.map((row, at) => {
    const next = rows[at + 1];
    const isWhole = next !== undefined && next.version > row.version;
    return { id: textOf(next === undefined ? end : isWhole ? endOf(row.version) : row), change: changeOf(row) };
  });
}

function changeOf({ kind, data }: Row): SharedChange {
  if (kind === "capsule") return { kind, view: { ...viewOfRemote(data as never), host: data.host } as CapsuleView };
  if (kind === "template") return { kind, view: { ...(data as unknown as RemoteTemplate), type: "snapshot" } };
  if (kind === "capsule-removed") return { kind, id: String((data as unknown as Capsule).id) };
  return { kind, name: String(data.name) };
}
