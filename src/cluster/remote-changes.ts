/**
 * Changes of a team's capsules and templates on other hosts, for its event streams: asked for twice a second, for teams that listen. A
 * change has the team's version, which is locked until its commit: what is above the last one read has not been read yet.
 */
import type { Capsule } from "../capsules/store.ts";
import type { CapsuleView } from "../capsules/view.ts";
import type { Log } from "../log.ts";
import { viewOfRemote } from "./listing.ts";
import type { Postgres } from "./postgres.ts";
import { rowSelection } from "./rows.ts";

/** A template of another host. */
export interface RemoteTemplate {
  name: string;
  vcpus: number;
  memoryMb: number;
  sizeBytes: number;
  createdAt: number;
}

export interface RemoteListeners {
  capsule: (teamId: string, id: string, view: CapsuleView | undefined) => void;
  template: (teamId: string, name: string, template: RemoteTemplate | undefined) => void;
}

export interface RemoteChangesOptions {
  sql: Postgres;
  host: string;
  log: Log;
}

const pollMs = 500;
/** A stream that is opened again within this time has missed nothing. */
const lingerMs = 330_000;
const rowsMax = 1_000;
const what = { what: "follow the changes of a team" };

interface Followed {
  version: number;
  streams: number;
  timer?: NodeJS.Timeout;
}

interface Change {
  version: number;
}

export class RemoteChanges {
  readonly #options: RemoteChangesOptions;
  readonly #teams = new Map<string, Followed>();
  readonly #listeners = new Set<RemoteListeners>();
  #timer: NodeJS.Timeout | undefined;

  constructor(options: RemoteChangesOptions) {
    this.#options = options;
  }

  onChange(listeners: RemoteListeners): () => void {
    this.#listeners.add(listeners);
    return () => this.#listeners.delete(listeners);
  }

  /** Every change after the answer is told. The returned function ends that, some minutes later. Throws "unavailable". */
  async follow(teamId: string): Promise<() => void> {
    let followed = this.#teams.get(teamId);
    if (followed === undefined) {
      const [row] = await this.#options.sql.query<{ version: number }>(
        "SELECT version FROM teams WHERE id = $1",
        [teamId],
        what,
      );
      followed = this.#teams.get(teamId) ?? { version: row?.version ?? 0, streams: 0 };
      this.#teams.set(teamId, followed);
    }
    clearTimeout(followed.timer);
    followed.streams += 1;
    this.#schedule();
    return () => this.#unfollow(teamId, followed);
  }

  close(): void {
    clearTimeout(this.#timer);
    for (const { timer } of this.#teams.values()) clearTimeout(timer);
    this.#teams.clear();
  }

  #unfollow(teamId: string, followed: Followed): void {
    followed.streams -= 1;
    if (followed.streams === 0) followed.timer = setTimeout(() => this.#teams.delete(teamId), lingerMs).unref();
  }

  #schedule(): void {
    if (this.#timer !== undefined || this.#teams.size === 0) return;
    this.#timer = setTimeout(() => {
      this.poll().finally(() => {
        this.#timer = undefined;
        this.#schedule();
      });
    }, pollMs).unref();
  }

  /** Tells what has changed since the last call. Resolves also when the database is away: the next call tells it. */
  async poll(): Promise<void> {
    const { sql, log } = this.#options;
    try {
      await this.#read();
    } catch (error) {
      if (!sql.isAway) log.error({ err: error }, "changes on other hosts could not be read");
    }
  }

  /** A team's version is read first: all changes up to it are committed then, and a row that changes later gets a higher one. */
  async #read(): Promise<void> {
    const { sql } = this.#options;
    const rows = await sql.query<{ id: string; version: number }>(
      "SELECT id, version FROM teams WHERE id = ANY($1)",
      [[...this.#teams.keys()]],
      what,
    );
    for (const { id, version } of rows) {
      const followed = this.#teams.get(id);
      if (followed !== undefined && version > followed.version) await this.#readTeam(id, followed, version);
    }
  }

  async #readTeam(teamId: string, followed: Followed, until: number): Promise<void> {
    const query = <Row extends Change>(select: string, table: string, condition: string) =>
      this.#options.sql.query<Row>(
        `SELECT ${select}, version FROM ${table} WHERE team_id = $1 AND version > $2 AND version <= $3 AND ${condition}
         ORDER BY version LIMIT ${rowsMax}`,
        [teamId, followed.version, until, this.#options.host],
        what,
      );
    const capsules = await query<Capsule & Change & { host: string }>(
      `${rowSelection}, host`,
      "capsules",
      "host IS DISTINCT FROM $4",
    );
    const gone = await query<Change & { id: string }>("id", "tombstones", "host IS DISTINCT FROM $4");
    const templates = await query<Change & RemoteTemplate & { isRetired: boolean; isDeleted: boolean }>(
      `name, vcpus, memory_mb AS "memoryMb", size_bytes AS "sizeBytes", created_at AS "createdAt",
       retired_at IS NOT NULL AS "isRetired", is_deleted AS "isDeleted"`,
      "templates",
      "made_on <> $4",
    );
    for (const { version: _, host, ...row } of capsules) {
      const view = { ...viewOfRemote(row as Capsule & Record<string, unknown>), host };
      for (const { capsule } of this.#listeners) capsule(teamId, row.id, view);
    }
    for (const { id } of gone) for (const { capsule } of this.#listeners) capsule(teamId, id, undefined);
    for (const { version: _, isRetired, isDeleted, ...template } of templates) {
      if (isRetired && !isDeleted) continue; // the template that replaced it is told
      for (const each of this.#listeners) each.template(teamId, template.name, isRetired ? undefined : template);
    }
    // Where a part was cut off, rows of its last version may be missing.
    const cut = [capsules, gone, templates].filter(({ length }) => length === rowsMax);
    followed.version = Math.min(until, ...cut.map((part) => part.at(-1)!.version - 1));
  }
}
