/**
 * The last host of a cluster gets capsules that no host holds, and templates whose files it lacks, before it leaves (docs/adr/0128).
 * Nothing is released meanwhile. An operator begins it in PostgreSQL, and ends it there.
 */
import type { Clock } from "../capsules/clock.ts";
import type { TemplateRows } from "../db/template-rows.ts";
import type { Log } from "../log.ts";
import { messageOf } from "../wire/errors.ts";
import type { Acquiring } from "./acquiring.ts";
import type { Artifacts } from "./artifacts.ts";
import type { Postgres } from "./postgres.ts";

export interface GatheringOptions {
  sql: Postgres;
  acquiring: Pick<Acquiring, "acquire">;
  /** Undefined: the cluster has no bucket, and no files are elsewhere. */
  artifacts: Pick<Artifacts, "fetch"> | undefined;
  /** Templates whose files are here. */
  templates: Pick<TemplateRows, "all">;
  clock: Pick<Clock, "ticks">;
  log: Log;
}

interface Failed {
  failures: number;
  dueTicks: number;
}

/** Capsules and templates that are fetched at a time. */
const atOnce = 4;
/** Rows of one statement. */
const rowsMax = 100;
/** After a failure, twice as long after each further one. */
const [pauseMs, pauseMaxMs] = [5_000, 60_000];

const what = { what: "look for what this host gathers" };

export class Gathering {
  readonly #options: GatheringOptions;
  /** By the id of a capsule, or the storage of a template. */
  readonly #underWay = new Map<string, Promise<void>>();
  readonly #failed = new Map<string, Failed>();
  #isOn = false;
  #isClosed = false;

  constructor(options: GatheringOptions) {
    this.#options = options;
  }

  get isOn(): boolean {
    return this.#isOn;
  }

  /** Call it after each answered heartbeat. */
  follow(isOn: boolean): void {
    if (isOn !== this.#isOn)
      this.#options.log.info({ isOn }, "the last host of the cluster gathers what it is to keep");
    this.#isOn = isOn;
    if (!isOn) this.#failed.clear();
  }

  /** Once a second, when the service has recovered. Never rejects. */
  async round(): Promise<void> {
    const { sql, artifacts, log } = this.#options;
    if (!this.#isOn || this.#isClosed) return;
    try {
      for (const id of await this.#capsules()) this.#begin(id, () => this.#acquire(id));
      if (artifacts === undefined) return;
      for (const storage of await this.#templates())
        this.#begin(storage, async () => (await artifacts.fetch("template", storage))[Symbol.dispose]());
    } catch (error) {
      if (!sql.isAway)
        log.error({ err: error }, "capsules and templates that this host gathers could not be looked for");
    }
  }

  /** Begins nothing more. */
  stop(): void {
    this.#isClosed = true;
  }

  /** Resolves when nothing is under way. */
  async ended(): Promise<void> {
    await Promise.all(this.#underWay.values());
  }

  async #capsules(): Promise<string[]> {
    const found = await this.#options.sql.query<{ id: string }>(
      `SELECT id FROM capsules WHERE host IS NULL AND id <> ALL($1) ORDER BY id LIMIT ${rowsMax}`,
      [this.#passedOver()],
      what,
    );
    return found.map(({ id }) => id);
  }

  async #templates(): Promise<string[]> {
    const { sql, templates } = this.#options;
    const found = await sql.query<{ storage: string }>(
      `SELECT storage FROM templates JOIN artifacts ON kind = 'template' AND key = storage AND NOT is_pending
       WHERE retired_at IS NULL AND storage <> ALL($1) ORDER BY storage LIMIT ${rowsMax}`,
      [[...this.#passedOver(), ...templates.all().map(({ storage }) => storage)]],
      what,
    );
    return found.map(({ storage }) => storage);
  }

  #passedOver(): string[] {
    const now = this.#options.clock.ticks();
    const waiting = [...this.#failed].filter(([, { dueTicks }]) => dueTicks > now).map(([key]) => key);
    return [...this.#underWay.keys(), ...waiting];
  }

  #begin(key: string, work: () => Promise<void>): void {
    if (this.#underWay.size >= atOnce || this.#underWay.has(key) || this.#isClosed) return;
    const { clock, log } = this.#options;
    const end = work()
      .then(() => void this.#failed.delete(key))
      .catch((error: unknown) => {
        const failures = (this.#failed.get(key)?.failures ?? 0) + 1;
        const waitMs = Math.min(pauseMs * 2 ** (failures - 1), pauseMaxMs);
        this.#failed.set(key, { failures, dueTicks: clock.ticks() + waitMs });
        log.error({ err: error, key }, "what this host gathers could not be fetched; it will be tried again");
      })
      .finally(() => this.#underWay.delete(key));
    this.#underWay.set(key, end);
  }

  async #acquire(id: string): Promise<void> {
    const { acquiring, sql } = this.#options;
    try {
      await acquiring.acquire({ id, need: "held" });
    } catch (error) {
      await sql.query(
        "UPDATE capsules SET stays = $2, stays_in = NULL WHERE id = $1 AND host IS NULL",
        [id, messageOf(error)],
        {
          what: "note why a capsule is not here",
        },
      );
      throw error;
    }
  }
}
