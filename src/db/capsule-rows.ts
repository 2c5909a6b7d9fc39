/** Capsule rows. Changes of status and intent are compare-and-set on the revision that the caller has read. */
import type { StatementSync } from "node:sqlite";
import {
  assigned,
  type CapsuleChange,
  type CapsuleRow,
  type CapsuleSettings,
  columns,
  fields,
  selection,
  settingsAssigned,
} from "./capsule-columns.ts";
import { type Database, transact, withoutSync } from "./database.ts";
import { Tombstones } from "./tombstones.ts";

export type { CapsuleChange, CapsuleRow, CapsuleSettings };

/** The next row, if there is one, is not read when `isLast` is false. */
export interface RowPage {
  rows: (CapsuleRow & { sequence: number })[];
  isLast: boolean;
}

export class CapsuleRows {
  readonly #database: Database;
  readonly #tombstones: Tombstones;
  readonly #byId: StatementSync;
  readonly #ofTeamById: StatementSync;
  readonly #ofTeam: StatementSync;
  readonly #page: StatementSync;
  readonly #idNamed: StatementSync;
  readonly #set: StatementSync;
  readonly #all: StatementSync;
  readonly #teams: StatementSync;
  readonly #insert: StatementSync;
  readonly #active: StatementSync;
  readonly #any: StatementSync;
  readonly #remove: StatementSync;
  readonly #block: StatementSync;
  readonly #onStorage: StatementSync;
  readonly #ids: StatementSync;
  readonly #usage: StatementSync;
  readonly #runningMemory: StatementSync;
  readonly #liveByTeam: StatementSync;
  readonly #counts: StatementSync;
  readonly #countsByTeam: StatementSync;
  readonly #withoutDiskSize: StatementSync;
  readonly #setDiskSize: StatementSync;
  readonly #urlSecret: StatementSync;
  readonly #setUrlSecret: StatementSync;
  readonly #envs: StatementSync;
  readonly #setEnvs: StatementSync;
  readonly #changes = new Map<string, StatementSync>();

  constructor(database: Database) {
    this.#database = database;
    this.#tombstones = new Tombstones(database);
    this.#byId = database.prepare(`SELECT ${selection} FROM capsules WHERE id = ?`);
    this.#ofTeamById = database.prepare(
      `SELECT ${selection} FROM capsules INDEXED BY capsules_of_team_by_id WHERE id = ? AND team_id = ?`,
    );
    // By insertion order: a clock can be set back, and two rows can have the same time.
    this.#ofTeam = database.prepare(`SELECT ${selection} FROM capsules WHERE team_id = ? ORDER BY sequence DESC`);
    this.#page = database.prepare(
      `SELECT ${selection}, sequence FROM capsules WHERE team_id = ? AND sequence < ? ORDER BY sequence DESC`,
    );
    this.#idNamed = database.prepare("SELECT id FROM capsules WHERE team_id = ? AND name = ?");
    this.#set = database.prepare(`UPDATE capsules SET ${settingsAssigned} WHERE id = :id RETURNING ${selection}`);
    this.#teams = database.prepare("SELECT id, team_id AS teamId FROM capsules");
    this.#all = database.prepare(`SELECT ${selection} FROM capsules ORDER BY rowid`);
    this.#insert = database.prepare(
      `INSERT INTO capsules (${Object.values(columns).join(", ")}, sequence)
       VALUES (${fields.map((f) => `:${f}`).join(", ")},
         (SELECT COALESCE(MAX(sequence), 0) + 1 FROM capsules WHERE team_id = :teamId))`,
    );
    this.#active = database.prepare("UPDATE capsules SET last_active_at = ? WHERE id = ?");
    this.#any = database.prepare("SELECT 1 FROM capsules UNION ALL SELECT 1 FROM tombstones LIMIT 1");
    this.#remove = database.prepare("DELETE FROM capsules WHERE id = ?");
    this.#block = database.prepare(
      "UPDATE capsules SET blocked_by = ? WHERE storage = ? AND intent IS NULL AND status IN ('paused', 'stopped', 'error')",
    );
    this.#ids = database.prepare("SELECT id FROM capsules WHERE team_id = ?");
    const isLive = "(status IN (SELECT value FROM json_each(:live)) OR intent IN ('resume', 'start'))";
    this.#usage = database.prepare(
      `SELECT COUNT(*) AS capsules, COALESCE(SUM(vcpus) FILTER (WHERE ${isLive}), 0) AS runningVcpus,
         COALESCE(SUM(memory_mb) FILTER (WHERE ${isLive}), 0) AS runningMemoryMb
       FROM capsules WHERE team_id = :teamId`,
    );
    this.#runningMemory = database.prepare(`SELECT COALESCE(SUM(memory_mb), 0) AS sum FROM capsules WHERE ${isLive}`);
    this.#liveByTeam = database.prepare(
      `SELECT team_id AS teamId, COUNT(*) AS count FROM capsules WHERE ${isLive} GROUP BY team_id`,
    );
    this.#counts = database.prepare("SELECT status, COUNT(*) AS count FROM capsules GROUP BY status");
    this.#countsByTeam = database.prepare(
      `SELECT team_id AS teamId, SUM(status = 'running') AS running, SUM(status = 'paused') AS paused
       FROM capsules WHERE intent IS NOT 'destroy' GROUP BY team_id`,
    );
    this.#withoutDiskSize = database.prepare(`SELECT ${selection} FROM capsules WHERE disk_mb = 0`);
    this.#setDiskSize = database.prepare("UPDATE capsules SET disk_mb = ? WHERE id = ?");
    this.#urlSecret = database.prepare("SELECT url_secret AS secret FROM capsules WHERE id = ?");
    this.#setUrlSecret = database.prepare("UPDATE capsules SET url_secret = ? WHERE id = ? AND url_secret IS NULL");
    this.#envs = database.prepare("SELECT envs FROM capsules WHERE id = ?");
    this.#setEnvs = database.prepare("UPDATE capsules SET envs = ? WHERE id = ?");
    this.#onStorage = database.prepare(
      "SELECT COUNT(*) AS count FROM capsules WHERE storage = ? AND blocked_by IS NULL",
    );
  }

  /** The number of a team's capsules, and the vCPUs and memory of those in a `live` status or being resumed or started. */
  usage(teamId: string, live: string[]): { capsules: number; runningVcpus: number; runningMemoryMb: number } {
    const row = this.#usage.get({ teamId, live: JSON.stringify(live) });
    return { ...(row as { capsules: number; runningVcpus: number; runningMemoryMb: number }) };
  }

  /** The capsules of all teams. */
  runningMemoryMb(live: string[]): number {
    return (this.#runningMemory.get({ live: JSON.stringify(live) }) as { sum: number }).sum;
  }

  /** The number of capsules in a `live` status or being resumed, of each team that has some. */
  liveByTeam(live: string[]): [teamId: string, count: number][] {
    const rows = this.#liveByTeam.all({ live: JSON.stringify(live) }) as { teamId: string; count: number }[];
    return rows.map(({ teamId, count }) => [teamId, count]);
  }

  idsOf(teamId: string): string[] {
    return (this.#ids.all(teamId) as { id: string }[]).map(({ id }) => id);
  }

  /** The number of capsules in each status that occurs. */
  counts(): [status: string, count: number][] {
    const rows = this.#counts.all() as { status: string; count: number }[];
    return rows.map(({ status, count }) => [status, count]);
  }

  /** The number in each status, by team. Reads all capsules. */
  countsByTeam(): Map<string, { running: number; paused: number }> {
    const rows = this.#countsByTeam.all() as { teamId: string; running: number; paused: number }[];
    return new Map(rows.map(({ teamId, running, paused }) => [teamId, { running, paused }]));
  }

  /** Capsules of which the size of the disk is not known. */
  withoutDiskSize(): CapsuleRow[] {
    return this.#withoutDiskSize.all() as unknown as CapsuleRow[];
  }

  setDiskSize(id: string, diskMb: number): void {
    this.#setDiskSize.run(diskMb, id);
  }

  get(id: string): CapsuleRow | undefined {
    return this.#byId.get(id) as CapsuleRow | undefined;
  }

  /** Found by team first: another team's capsule takes the same time as an unknown id. */
  ofTeamById(teamId: string, id: string): CapsuleRow | undefined {
    return this.#ofTeamById.get(id, teamId) as CapsuleRow | undefined;
  }

  /** Newest first. */
  ofTeam(teamId: string): CapsuleRow[] {
    return this.#ofTeam.all(teamId) as unknown as CapsuleRow[];
  }

  /** Rows of the team from before `sequence`, newest first, until they are `rows`, or their labels and networks have `textBytes`. */
  page(teamId: string, sequence: number, { rows: most, textBytes }: { rows: number; textBytes: number }): RowPage {
    const rows: RowPage["rows"] = [];
    let bytes = 0;
    for (const row of this.#page.iterate(teamId, sequence) as unknown as Iterable<RowPage["rows"][number]>) {
      rows.push(row);
      bytes += row.labels.length + (row.network?.length ?? 0);
      if (rows.length >= most || bytes >= textBytes) return { rows, isLast: false };
    }
    return { rows, isLast: true };
  }

  /** The team of each capsule. */
  teams(): Map<string, string> {
    const rows = this.#teams.all() as { id: string; teamId: string }[];
    return new Map(rows.map(({ id, teamId }) => [id, teamId]));
  }

  idNamed(teamId: string, name: string): string | undefined {
    return (this.#idNamed.get(teamId, name) as { id: string } | undefined)?.id;
  }

  all(): CapsuleRow[] {
    return this.#all.all() as unknown as CapsuleRow[];
  }

  /** Whether there is a capsule, or once was one. */
  hasAny(): boolean {
    return this.#any.get() !== undefined;
  }

  /** One transaction with `alongside`. False, and nothing is written, when the id exists or once existed. */
  insert(row: CapsuleRow, alongside = () => {}): boolean {
    return transact(this.#database, () => {
      if (this.get(row.id) !== undefined || this.hasTombstone(row.id)) return false;
      this.#insert.run({ ...row });
      alongside();
      return true;
    });
  }

  /**
   * Compare-and-set: applies `change` if the row still has `revision`, and returns the new row; undefined when it has
   * moved on or is gone.
   */
  change(id: string, revision: number, change: CapsuleChange): CapsuleRow | undefined {
    const sets = assigned(change);
    let statement = this.#changes.get(sets);
    if (statement === undefined) {
      statement = this.#database.prepare(
        `UPDATE capsules SET ${sets}
         WHERE id = :id AND generation = :revision RETURNING ${selection}`,
      );
      this.#changes.set(sets, statement);
    }
    return statement.get({ id, revision, ...change }) as CapsuleRow | undefined;
  }

  /**
   * In one transaction with `alongside`. Leaves the revision as it is: a change under way goes on. Throws when another capsule has the
   * name.
   */
  set(id: string, settings: CapsuleSettings, alongside?: () => void): CapsuleRow | undefined {
    const set = () => this.#set.get({ id, ...settings }) as CapsuleRow | undefined;
    if (alongside === undefined) return set();
    return transact(this.#database, () => {
      alongside();
      return set();
    });
  }

  /** As `change`, in one transaction with `alongside`, which is not called when the row has changed. */
  changeWith(id: string, revision: number, change: CapsuleChange, alongside: () => void): CapsuleRow | undefined {
    return transact(this.#database, () => {
      const changed = this.change(id, revision, change);
      if (changed !== undefined) alongside();
      return changed;
    });
  }

  /** As `change`, durable only with the next synced commit. */
  changeUnsynced(id: string, revision: number, change: CapsuleChange): CapsuleRow | undefined {
    return this.unsynced(() => this.change(id, revision, change));
  }

  /** As `withoutSync` of the database. */
  unsynced<T>(work: () => T): T {
    return withoutSync(this.#database, work);
  }

  /** Writes the last activity of several capsules in one unsynced commit, without touching their revisions. */
  noteActive(times: Iterable<[id: string, atMs: number]>): void {
    const note = () => {
      for (const [id, atMs] of times) this.#active.run(atMs, id);
    };
    withoutSync(this.#database, () => transact(this.#database, note));
  }

  /**
   * One transaction: `alongside`, a tombstone, and the intent `destroy` by compare-and-set, which frees the name. Throws, and
   * writes nothing, when the row is gone or has another revision.
   */
  beginDestroy(id: string, revision: number, atMs: number, alongside: () => void): CapsuleRow {
    return transact(this.#database, () => {
      alongside();
      this.#tombstones.add(id, atMs);
      const changed = this.change(id, revision, { intent: "destroy", name: null });
      if (changed === undefined) throw new Error(`the row of capsule ${id} has changed since it was read`);
      return changed;
    });
  }

  /** A tombstone of a capsule that has no row. */
  noteDestroyed(id: string, atMs: number): void {
    this.#tombstones.add(id, atMs);
  }

  /** Whether a capsule with this id was destroyed. */
  hasTombstone(id: string): boolean {
    return this.#tombstones.has(id);
  }

  /** As `Tombstones.since`. */
  destroyedSince(atMs: number, after: string, most: number): string[] {
    return this.#tombstones.since(atMs, after, most);
  }

  /** As `Tombstones.forget`. */
  forgetTombstones(beforeMs: number, folders: readonly string[], most?: number): void {
    this.#tombstones.forget(beforeMs, folders, most);
  }

  /** Under which URLs of its files are signed; null: none was made yet. Undefined: there is no such capsule. */
  urlSecret(id: string): Uint8Array | null | undefined {
    return (this.#urlSecret.get(id) as { secret: Uint8Array | null } | undefined)?.secret;
  }

  /** Sets the secret of a capsule that has none. */
  setUrlSecret(id: string, secret: Uint8Array): void {
    this.#setUrlSecret.run(secret, id);
  }

  /** Sealed; undefined: none. */
  envs(id: string): Uint8Array | undefined {
    return (this.#envs.get(id) as { envs: Uint8Array | null } | undefined)?.envs ?? undefined;
  }

  setEnvs(id: string, sealed: Uint8Array): void {
    this.#setEnvs.run(sealed, id);
  }

  remove(id: string): void {
    this.#remove.run(id);
  }

  /** Marks every capsule of this storage without a VM, and without an intent, as depending on a deleted template. */
  block(storage: string, templateName: string): void {
    this.#block.run(templateName, storage);
  }

  /** How many capsules still need this storage's files. */
  needing(storage: string): number {
    return (this.#onStorage.get(storage) as { count: number }).count;
  }
}
