/**
 * This host tells a database that was put back what it may have forgotten: capsules that were destroyed here, those that are held here or
 * were released, and templates that were made here. Nothing is stopped, and nothing is taken from the database meanwhile
 * (docs/adr/0054-let-hosts-tell-a-database-that-was-put-back.md, docs/adr/0125-tell-what-was-released.md).
 */
import type { Clock } from "../capsules/clock.ts";
import type { CapsuleStore } from "../capsules/store.ts";
import type { CatalogRows } from "../db/catalog-rows.ts";
import type { HoldingRows } from "../db/holding-rows.ts";
import type { ReleasedRow } from "../db/released-rows.ts";
import type { TemplateRows } from "../db/template-rows.ts";
import type { Log } from "../log.ts";
import type { Acquiring } from "./acquiring.ts";
import type { Copies } from "./copies.ts";
import type { DecidedByDatabase } from "./decided.ts";
import { Refusal } from "./failures.ts";
import { templateColumns } from "./foundation.ts";
import type { Me } from "./membership.ts";
import type { Postgres } from "./postgres.ts";
import { columnsOf, jsonOf } from "./rows.ts";

export interface AssertingOptions {
  sql: Postgres;
  me: Me;
  store: Pick<CapsuleStore, "all" | "get" | "destroyedSince">;
  rows: {
    catalog: Pick<CatalogRows, "teams">;
    holding: Pick<HoldingRows, "epoch" | "releasing" | "allReleasing" | "released">;
    templates: TemplateRows;
  };
  cluster: {
    copies: Pick<Copies, "next" | "markAll">;
    decided: Pick<DecidedByDatabase, "isDeciding">;
    acquiring: Pick<Acquiring, "isUnderWay">;
  };
  clock: Pick<Clock, "now" | "ticks">;
  log: Log;
}

/** Told again until the place is confirmed: a name is free once its former capsule's host has told. */
const againMs = 10_000;
/** A database forgets no more: its replica is not older, nor is a dump that is put back without a thought. */
const destroyedMs = 86_400_000;
const [rowsMax, textMaxBytes] = [200, 1 << 20];
const what = { what: "tell a database that was put back what this host holds" };

export class Asserting {
  readonly #options: AssertingOptions;
  #told: { place: string; at: number } | undefined;

  constructor(options: AssertingOptions) {
    this.#options = options;
  }

  /** Call it after each heartbeat at a place that is not the cluster's. Never rejects. */
  async assert(place: string): Promise<void> {
    const { sql, log, clock, cluster, me } = this.#options;
    // The answer of an earlier question may be on its way: its outcome is in no row here yet.
    if (cluster.decided.isDeciding || cluster.acquiring.isUnderWay) return;
    if (this.#told?.place === place && clock.ticks() - this.#told.at < againMs) return;
    try {
      await this.#tell();
      cluster.copies.markAll(); // a row that is there with its epoch may have an earlier status
      await sql.call("end_asserting", [me.name, me.epoch, place], what);
      if (this.#told?.place !== place)
        log.error({ place }, "the cluster's database was put back: it was told what this host holds");
      this.#told = { place, at: clock.ticks() };
    } catch (error) {
      const isConfirmed = error instanceof Refusal && error.raised === "CP017";
      if (!isConfirmed && !sql.isAway)
        log.error({ err: error }, "the database could not be told what this host holds; it will be tried again");
    }
  }

  async #tell(): Promise<void> {
    const { store, rows, cluster, clock, log } = this.#options;
    await this.#inParts("assert_teams", rows.catalog.teams(), ({ id, name, createdAt }) => ({
      id,
      name,
      created_at: createdAt,
    }));
    for (let after = ""; ; ) {
      const ids = store.destroyedSince(clock.now() - destroyedMs, after, rowsMax);
      if (ids.length > 0) await this.#call("assert_destroyed", ids);
      if (ids.length < rowsMax) break;
      after = ids.at(-1)!;
    }
    await this.#inParts("assert_templates", rows.templates.all(), (row) => templateColumns(row));
    // A capsule with an unanswered release is told of below.
    const held = store.all().filter(({ id, intent }) => intent !== "destroy" && rows.holding.releasing(id) === null);
    const odd = await this.#inParts("assert_held", held, (row) => ({
      ...columnsOf(row),
      epoch: rows.holding.epoch(row.id),
      copy: cluster.copies.next(),
    }));
    for (const id of odd.flatMap((ids) => (ids as string[] | null) ?? []))
      log.error({ capsule: id }, "a capsule is held here, and by a later holder in a database that was put back");
    for (const id of await this.#tellReleased())
      log.error(
        { capsule: id },
        "a capsule was released here, and not with this epoch in a database that was put back",
      );
  }

  /** Behind what is held: a capsule may have begun to leave meanwhile. */
  async #tellReleased(): Promise<string[]> {
    const { store, rows, clock } = this.#options;
    const columns = ({ epoch, columns: text }: ReleasedRow) => ({ ...(JSON.parse(text) as object), epoch });
    const odd: unknown[] = [];
    for (let after: ReleasedRow | undefined; ; ) {
      const page = rows.holding.released.page(clock.now(), after, { rows: rowsMax, textBytes: textMaxBytes });
      after = page.at(-1);
      if (after === undefined) break;
      odd.push(...(await this.#inParts("assert_released", page, columns)));
    }
    // It is sent again until it has an answer, and the capsule runs only behind an acquire: it counts as released.
    const releasing = rows.holding.allReleasing().filter(({ id }) => store.get(id)?.intent !== "destroy");
    const sent = releasing.map(({ id, epoch, releasing: text }) => ({ id, epoch, columns: text }));
    odd.push(...(await this.#inParts("assert_released", sent, columns)));
    return odd.flatMap((ids) => (ids as string[] | null) ?? []);
  }

  async #inParts<Row>(name: string, all: readonly Row[], columns: (row: Row) => object): Promise<unknown[]> {
    const answers: unknown[] = [];
    for (let from = 0; from < all.length; from += rowsMax)
      answers.push(await this.#call(name, jsonOf(all.slice(from, from + rowsMax).map(columns))));
    return answers;
  }

  #call(name: string, values: unknown): Promise<unknown> {
    const { sql, me } = this.#options;
    return sql.call(name, [me.name, me.epoch, values], what);
  }
}
