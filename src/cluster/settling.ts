/**
 * Makes this host and PostgreSQL agree about what this host holds: after a start, after an outage, each minute, and where an answer was
 * lost. A capsule that PostgreSQL lists as destroyed is destroyed here; the row of a create whose client got no answer is deleted there;
 * names are taken from PostgreSQL.
 */
import type { Captures } from "../capsules/captures.ts";
import type { Decisions } from "../capsules/decisions.ts";
import type { Capsule, CapsuleStore } from "../capsules/store.ts";
import type { HoldingRows } from "../db/holding-rows.ts";
import type { TemplateRows } from "../db/template-rows.ts";
import type { Log } from "../log.ts";
import type { Acquiring } from "./acquiring.ts";
import type { Copies } from "./copies.ts";
import type { DecidedByDatabase } from "./decided.ts";
import { Refusal } from "./failures.ts";
import type { Me } from "./membership.ts";
import type { Postgres } from "./postgres.ts";

export interface SettlingOptions {
  sql: Postgres;
  me: Me;
  store: Pick<CapsuleStore, "leaving" | "all" | "get" | "isBeingDestroyed" | "wasDestroyed">;
  /** The epochs of capsules. */
  holding: Pick<HoldingRows, "epoch">;
  decisions: Decisions;
  captures: Pick<Captures, "complete">;
  decided: Pick<DecidedByDatabase, "creating" | "capturing">;
  copies: Pick<Copies, "mark">;
  acquiring: Pick<Acquiring, "has" | "giveBack">;
  /** Ends a capsule that exists nowhere else any longer. */
  end: (row: Capsule) => Promise<void>;
  /** Ends the VM of a capsule, whose files stay. False: it has none. */
  stop: (id: string, reason: string) => boolean;
  /** Gives a capsule the name that was decided. */
  rename: (row: Capsule, name: string | null) => void;
  templates: Pick<TemplateRows, "all" | "isNoted">;
  log: Log;
}

/** The findings of one pass. */
export interface Findings {
  /** Capsules that were destroyed elsewhere, and are ended here. */
  destroyed: number;
  /** Creates without a row here, templates without files, and capsules that were acquired and did not come here. */
  undone: number;
  renamed: number;
  /** Contradictions: rows of another host, or of none, and rows that this host has lost. An operator has to look. */
  alarms: string[];
}

const pageRows = 1_000;
const what = { what: "compare the capsules of this host" };

interface Known {
  id: string;
  host: string | null;
  epoch: number;
  name: string | null;
  /** False: the database was put back, and may have forgotten who holds it. */
  isOwnPlace: boolean;
  /** Other hosts count this one as lost. */
  isLost: boolean;
}

/** A row of this host in PostgreSQL. */
interface HeldThere {
  id: string;
  epoch: number;
  /** No status of it was copied yet. */
  isUntold: boolean | null;
  /** Its checkpoint in the bucket is that of its last change. */
  isWhole: boolean | null;
}

export class Settling {
  readonly #options: SettlingOptions;
  readonly #doubts = new Set<string>();
  #passing: Promise<Findings | undefined> | undefined;
  #contradictions = 0;

  constructor(options: SettlingOptions) {
    this.#options = options;
  }

  /** The outcome of what was asked about this capsule is not known. */
  doubt(id: string): void {
    this.#doubts.add(id);
  }

  /** The number of them in the last comparison of all capsules, or more if a later one of some found more. */
  get contradictions(): number {
    return this.#contradictions;
  }

  get hasDoubts(): boolean {
    return this.#doubts.size > 0;
  }

  /** All that this host holds, or what is in doubt. A call during a pass joins it. Undefined: the database is away. */
  settle(which: "all" | "doubts"): Promise<Findings | undefined> {
    this.#passing ??= this.#pass(which).finally(() => {
      this.#passing = undefined;
    });
    return this.#passing;
  }

  async #pass(which: "all" | "doubts"): Promise<Findings | undefined> {
    const { store, sql, log } = this.#options;
    const findings: Findings = { destroyed: 0, undone: 0, renamed: 0, alarms: [] };
    const doubts = [...this.#doubts];
    // These rows are read first: a capsule that is made later has its row in PostgreSQL already, and is not missed there.
    const rows = which === "all" ? store.all() : doubts.map((id) => store.get(id)).filter((row) => row !== undefined);
    const held = rows.filter(({ intent }) => intent !== "destroy").map(({ id }) => id);
    try {
      for (let from = 0; from < held.length; from += pageRows)
        await this.#compare(held.slice(from, from + pageRows), findings);
      await this.#undo(which === "all" ? undefined : doubts, findings);
      if (which === "all") await this.#retire(findings);
      for (const id of doubts) this.#doubts.delete(id);
    } catch (error) {
      if (!sql.isAway)
        log.error({ err: error }, "capsules could not be compared with the cluster's; it will be tried again");
      return undefined;
    }
    const { length } = findings.alarms;
    this.#contradictions = which === "all" ? length : Math.max(length, this.#contradictions);
    for (const alarm of findings.alarms)
      log.error({ capsule: alarm }, "this host and the cluster disagree about a capsule");
    return findings;
  }

  /** Capsules of this host, as PostgreSQL has them. */
  async #compare(ids: string[], findings: Findings): Promise<void> {
    const { sql, store, me } = this.#options;
    const known = new Map((await this.#known(ids)).map((each) => [each.id, each]));
    const missing = ids.filter((id) => !known.has(id) && !store.isBeingDestroyed(id));
    const ended = await sql.query<{ id: string; storage: string | null }>(
      "SELECT id, captured_as AS storage FROM tombstones WHERE id = ANY($1)",
      [missing],
      what,
    );
    const storages = new Map(ended.map(({ id, storage }) => [id, storage]));
    for (const id of missing) {
      const storage = storages.get(id);
      // A capsule that was on its way from here was captured by the host that has acquired it.
      if (storage === null || (storage !== undefined && store.leaving.has(id))) await this.#end(id, findings);
      else if (storage !== undefined) await this.#complete(id, storage, findings);
      else if (!store.isBeingDestroyed(id)) findings.alarms.push(`${id} is unknown to the cluster`);
    }
    for (const { id, host, epoch, name, isLost, isOwnPlace } of known.values()) {
      if (!isOwnPlace) return;
      if (isLost) this.#options.copies.mark(id);
      if (host !== me.name) this.#giveUp(id, { holder: host ?? "no host", epoch }, findings);
      else if (store.get(id) !== undefined && store.get(id)?.name !== name) await this.#rename(id, findings);
    }
  }

  /** Two hosts must not run it: the VM ends, and an operator finds its files. It may have been released, or acquired, since that was read. */
  #giveUp(id: string, { holder, epoch }: { holder: string; epoch: number }, { alarms }: Findings): void {
    const { store, holding } = this.#options;
    if (store.get(id) === undefined || store.leaving.has(id) || holding.epoch(id) > epoch) return;
    alarms.push(`${id} is held here, and by ${holder} in the cluster`);
    this.#options.stop(id, `the cluster says that ${holder} holds it`);
  }

  #known(ids: string[]): Promise<Known[]> {
    return this.#options.sql.query<Known>(
      `SELECT id, host, epoch, name, lost_at IS NOT NULL AS "isLost", (SELECT is_own_place()) AS "isOwnPlace"
       FROM capsules WHERE id = ANY($1)`,
      [ids],
      what,
    );
  }

  async #end(id: string, findings: Findings): Promise<void> {
    const { decisions, store, end } = this.#options;
    const ended = await decisions.make(
      id,
      () => undefined,
      () => {
        const row = store.get(id);
        return row === undefined || row.intent === "destroy" ? undefined : { done: end(row) };
      },
    );
    if (ended === undefined) return;
    findings.destroyed += 1;
    await ended.done;
  }

  /** A capsule that became a template is never destroyed without it. */
  async #complete(id: string, storage: string, findings: Findings): Promise<void> {
    const { captures, store } = this.#options;
    const row = store.get(id);
    if (row === undefined) return;
    const completed = await captures.complete(row);
    if (completed === undefined)
      findings.alarms.push(`${id} was captured as template ${storage}, whose files are not here`);
    else {
      findings.destroyed += 1;
      await completed.ended;
    }
  }

  /** Read again where no other name can be decided meanwhile. */
  async #rename(id: string, findings: Findings): Promise<void> {
    const { decisions, store, rename } = this.#options;
    let known: Known | undefined;
    const read = async () => {
      [known] = await this.#known([id]);
    };
    await decisions.make(id, read, () => {
      const row = store.get(id);
      if (row === undefined || row.intent === "destroy" || known === undefined || row.name === known.name) return;
      if (!known.isOwnPlace) return; // it was put back since the names were compared
      rename(row, known.name);
      findings.renamed += 1;
    });
  }

  /** Rows of this host in PostgreSQL that it does not have. */
  async #undo(only: string[] | undefined, findings: Findings): Promise<void> {
    const { sql, me } = this.#options;
    let last = "";
    for (;;) {
      const rows = await sql.query<HeldThere>(
        `SELECT id, epoch, intent = 'create' AND (status = 'starting' OR lost_at IS NOT NULL) AS "isUntold",
           checkpoint_revision = revision AND (status = 'paused' OR lost_at IS NOT NULL) AS "isWhole" FROM capsules
         WHERE host = $1 AND id > $2 AND ($3::text[] IS NULL OR id = ANY($3))
         ORDER BY id LIMIT ${pageRows}`,
        [me.name, last, only ?? null],
        what,
      );
      for (const row of rows) await this.#undoOne(row, findings);
      if (rows.length < pageRows) return;
      last = rows.at(-1)!.id;
    }
  }

  async #undoOne({ id, epoch, isUntold, isWhole }: HeldThere, findings: Findings): Promise<void> {
    const { sql, me, store, decided, acquiring } = this.#options;
    const isComing = () => store.get(id) !== undefined || decided.creating.has(id) || acquiring.has(id);
    if (isComing()) return;
    if (store.wasDestroyed(id) || isUntold) {
      const undo = store.wasDestroyed(id) ? "delete_capsule" : "undo_create";
      await sql.call(undo, [id, epoch, me.name], what);
      findings.undone += 1;
    } else if (isWhole === true) {
      // Acquired by a life of this daemon that ended before the row was here, or by a statement without an answer.
      if (await this.#giveBack(id, epoch, isComing)) findings.undone += 1;
    } else if (await this.#isMissing(id, epoch)) {
      findings.alarms.push(`${id} is held by this host in the cluster, and is not here`);
    }
  }

  /** Read again: it may have been released since. */
  async #isMissing(id: string, epoch: number): Promise<boolean> {
    const { sql, me, store } = this.#options;
    const found = await sql.query(
      "SELECT 1 FROM capsules WHERE id = $1 AND host = $2 AND epoch = $3",
      [id, me.name, epoch],
      what,
    );
    return found.length > 0 && store.get(id) === undefined;
  }

  /** False: it has changed since. */
  async #giveBack(id: string, epoch: number, isComing: () => boolean): Promise<boolean> {
    const { sql, me, acquiring } = this.#options;
    const [found] = await sql.query<{ row: Record<string, unknown> }>(
      "SELECT to_jsonb(c) AS row FROM capsules c WHERE id = $1 AND epoch = $2 AND host = $3",
      [id, epoch, me.name],
      what,
    );
    if (found === undefined || isComing()) return false;
    return await acquiring.giveBack(id, found.row).then(
      () => true,
      (error: unknown) => {
        if (!(error instanceof Refusal)) throw error;
        return false;
      },
    );
  }

  /** Templates without files: of captures that failed here. A template that this database never knew stays: the database may be older. */
  async #retire(findings: Findings): Promise<void> {
    const { sql, me, decided, templates, store } = this.#options;
    const rows = await sql.query<{ storage: string; at: number }>(
      "SELECT storage, now_ms() AS at FROM templates WHERE made_on = $1 AND retired_at IS NULL",
      [me.name],
      what,
    );
    const here = new Set(templates.all().map(({ storage }) => storage));
    for (const { storage, at } of rows) {
      if (here.has(storage) || decided.capturing.has(storage)) continue;
      // Again: a capture may have ended since, or its outcome may not be known yet.
      if (templates.all().some((each) => each.storage === storage)) continue;
      if (store.all().some(({ intent }) => intent === "capture")) continue;
      if (!templates.isNoted(storage)) {
        findings.alarms.push(`template ${storage} is of this host in the cluster, and is not here`);
        continue;
      }
      await sql.call("retire_template", [storage, at], what);
      findings.undone += 1;
    }
  }
}
