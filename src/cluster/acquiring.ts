/**
 * Takes capsules that no host holds: PostgreSQL says whose one is by one conditional statement, its files come from this host's cache or
 * from the bucket, and its row is written here. Until then nothing of it runs; a failure gives it back as it was.
 */
import type { Clock } from "../capsules/clock.ts";
import type { CapsuleStore } from "../capsules/store.ts";
import type { HoldingRows } from "../db/holding-rows.ts";
import type { Need } from "../http/released.ts";
import type { Log } from "../log.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { ClusterStep, Copies } from "./copies.ts";
import type { DecidedByDatabase } from "./decided.ts";
import { Refusal, Unanswered } from "./failures.ts";
import type { Me } from "./membership.ts";
import type { Postgres } from "./postgres.ts";
import { decodeReleased, type Released, withoutIntent } from "./released.ts";
import { jsonOf } from "./rows.ts";

/** The files of released capsules, for this host. */
export interface ReleasedFiles {
  /**
   * Sets aside what the files of this one need here, until the result is disposed of. Rejects with "conflict" where this machine cannot
   * run it, "no_space", and "unavailable" where too many others are fetched; nothing has begun then.
   */
  admit(released: Released): Promise<Disposable>;
  /**
   * The folder of the capsule is here, whole and durable, and waits for its row. Rejects with "unavailable", "no_space" or "agent_error"; then
   * it is not here.
   */
  bring(acquired: Released): Promise<void>;
  /** The row is committed: the folder is in its place when this returns. Throws where it is not. A start does it for a row that lacks it. */
  take(acquired: Released): void;
  /** Takes back what `bring` did; the capsule has no row. */
  putBack(acquired: Released): Promise<void>;
}

/** A cluster without a bucket, in which nothing is released. */
const noFiles: ReleasedFiles = {
  admit: async () => {
    throw new CapsuleError("unavailable", "this host has no bucket, in which the capsule's files are");
  },
  bring: async () => {},
  take() {},
  putBack: async () => {},
};

export interface AcquiringOptions {
  sql: Postgres;
  me: Me;
  store: Pick<CapsuleStore, "get" | "idNamed" | "insert" | "remove">;
  holding: Pick<HoldingRows, "hold" | "released">;
  copies: Pick<Copies, "next" | "hold">;
  decided: Pick<DecidedByDatabase, "admitted">;
  clock: Pick<Clock, "now">;
  log: Log;
  step?: ClusterStep | undefined;
  /** A capsule that is moved has come here; `isAwaited`: a request that waits for it resumes it. */
  onMoved: (id: string, isAwaited: boolean) => void;
  /** The fate of the capsule is not known: it is settled when the database answers. */
  onDoubt: (id: string) => void;
}

interface UnderWay {
  need: Need;
  isHeld: Promise<boolean>;
  /** Set when the row is known. */
  teamId?: string;
  name?: string | null;
}

/** `failed`: the capsule was given back. `lost`: another host was faster, or it is gone. */
export type AcquireOutcome = "acquired" | "lost" | "refused" | "failed";

const what = "bring a capsule back";

export class Acquiring {
  readonly #options: AcquiringOptions;
  readonly #underWay = new Map<string, UnderWay>();
  readonly counts: Record<AcquireOutcome, number> = { acquired: 0, lost: 0, refused: 0, failed: 0 };
  #files = noFiles;

  constructor(options: AcquiringOptions) {
    this.#options = options;
  }

  /** The bucket, and the folders of this host. */
  open(files: ReleasedFiles): void {
    this.#files = files;
  }

  /** As ReleasedCapsules.acquire. */
  async acquire({ id, need, onBegin = () => {} }: { id: string; need: Need; onBegin?: () => void }): Promise<boolean> {
    for (;;) {
      if (this.#options.store.get(id) !== undefined) return true;
      const underWay = this.#underWay.get(id);
      if (underWay === undefined) return await this.#begin(id, need, onBegin);
      onBegin();
      try {
        return await underWay.isHeld;
      } catch (error) {
        if (underWay.need === need) throw error; // the refusal of another need is not this one's
      }
    }
  }

  /** Capsules may be this host's by now whose rows are not here yet. */
  get isUnderWay(): boolean {
    return this.#underWay.size > 0;
  }

  /** Whether a row of PostgreSQL that this host lacks is awaited. */
  has(id: string): boolean {
    return this.#underWay.has(id);
  }

  /** Resolves when it is held here, or not; undefined: the capsule is not on its way here. Never rejects. */
  coming(team: string | undefined, key: string): Promise<void> | undefined {
    for (const [id, { isHeld, teamId, name }] of this.#underWay) {
      if ((id === key && team === undefined) || (team === teamId && (id === key || name === key)))
        return isHeld.then(
          () => {},
          () => {},
        );
    }
    return undefined;
  }

  /** Resolves when nothing is under way. */
  async ended(): Promise<void> {
    while (this.#underWay.size > 0) await Promise.allSettled([...this.#underWay.values()].map(({ isHeld }) => isHeld));
  }

  /** A capsule of this host in PostgreSQL whose row is not here goes back as its checkpoint has it. Rejects with "unavailable". */
  async giveBack(id: string, row: Record<string, unknown>): Promise<void> {
    const { sql, me, holding, clock } = this.#options;
    const epoch = Number(row.epoch);
    // Where this host was counted as lost meanwhile, the row says so.
    const columns = jsonOf({ ...row, status: "paused", error_reason: null });
    await sql.call("release_capsule", [id, epoch, me.name, columns], { what: `give capsule ${id} back` });
    holding.released.note({ id, epoch, columns }, clock.now());
  }

  #begin(id: string, need: Need, onBegin: () => void): Promise<boolean> {
    const underWay: UnderWay = { need, isHeld: Promise.resolve(false) };
    this.#underWay.set(id, underWay);
    underWay.isHeld = this.#acquire(id, underWay, onBegin).finally(() => this.#underWay.delete(id));
    underWay.isHeld.catch(() => {});
    return underWay.isHeld;
  }

  async #acquire(id: string, underWay: UnderWay, onBegin: () => void): Promise<boolean> {
    const released = await this.#read(id);
    if (released === undefined) return false;
    underWay.teamId = released.row.teamId;
    underWay.name = released.row.name;
    onBegin();
    this.#requireName(released.row);
    using _admitted = await this.#files.admit(released).catch((error: unknown) => {
      this.counts.refused++;
      throw error;
    });
    const row = await this.#decide(released, underWay.need);
    if (row === undefined) return false;
    await this.#hold(row, underWay.need);
    return true;
  }

  /** undefined: a host holds it, or it is gone. */
  async #read(id: string): Promise<Released | undefined> {
    const { sql, me, onDoubt } = this.#options;
    const [found] = await sql.query<{ row: Record<string, unknown> }>(
      "SELECT to_jsonb(c) AS row FROM capsules c WHERE id = $1",
      [id],
      { what },
    );
    if (found === undefined) return undefined;
    if (found.row.host === me.name) {
      onDoubt(id); // what an earlier life of this daemon, or a statement without an answer, has left
      throw new CapsuleError("unavailable", `cannot ${what}: what this host has done with it is being settled`);
    }
    return found.row.host === null ? decodeReleased(found.row) : undefined;
  }

  /** A capsule that has the name on this host was renamed in PostgreSQL, and the answer was lost: it is settled first. */
  #requireName({ id, teamId, name }: Released["row"]): void {
    const { store, onDoubt } = this.#options;
    const other = name === null ? undefined : store.idNamed(teamId, name);
    if (other === undefined || other === id) return;
    onDoubt(other);
    throw new CapsuleError("unavailable", `cannot ${what}: its name is that of a capsule which is being settled here`);
  }

  /** undefined: another host was faster, or it is gone. */
  async #decide({ row, epoch }: Released, need: Need): Promise<Record<string, unknown> | undefined> {
    const { sql, me, copies, step, onDoubt } = this.#options;
    const intent = need === "held" ? null : "resume";
    try {
      const values = [row.id, epoch, me.name, me.epoch, intent, copies.next()];
      const acquired = await sql.call<Record<string, unknown>>("acquire_capsule", values, { what });
      step?.("acquired");
      return acquired;
    } catch (error) {
      if (error instanceof Unanswered && error.mayHaveRun) onDoubt(row.id);
      const isLost = error instanceof Refusal && (error.raised === "CP008" || error.raised === "CP003");
      this.counts[isLost ? "lost" : "refused"]++;
      if (!isLost) throw error;
      return undefined;
    }
  }

  /** `value`: the row of PostgreSQL, which names this host by now. */
  async #hold(value: Record<string, unknown>, need: Need): Promise<void> {
    const { copies, decided, step, onMoved } = this.#options;
    const id = String(value.id);
    const free = copies.hold(id);
    let brought: Released | undefined;
    try {
      const acquired = decodeReleased(withoutIntent(value));
      await this.#files.bring(acquired);
      brought = acquired;
      step?.("fetched");
      this.#insert(acquired);
    } catch (error) {
      this.counts.failed++;
      await this.#undo(value, brought, error);
      free();
      throw error;
    }
    this.counts.acquired++;
    if (need === "held") free();
    else decided.admitted(id, free);
    if (brought.isMoving) onMoved(id, need === "resume" || need === "wake");
  }

  /** The row before its folder, which a start would take for one of a lost database: no row explains it (docs/adr/0126). */
  #insert(acquired: Released): void {
    const { store, holding, step } = this.#options;
    const { row, epoch, kept, isMoving } = acquired;
    if (!store.insert(row, () => holding.hold(row.id, epoch, kept, isMoving)))
      throw new CapsuleError("not_found", `there is no capsule ${row.id}`); // it was destroyed here
    step?.("held");
    try {
      this.#files.take(acquired); // in the turn of the commit, so that nothing finds the row without its folder
    } catch (error) {
      store.remove(row.id);
      throw error;
    }
  }

  /** Gives it back; where that is not known, settling does. */
  async #undo(value: Record<string, unknown>, brought: Released | undefined, cause: unknown): Promise<void> {
    const { log, onDoubt } = this.#options;
    const id = String(value.id);
    log.error({ err: cause, capsule: id }, "a capsule could not be brought back; it stays as it was");
    try {
      if (brought !== undefined) await this.#files.putBack(brought);
      await this.giveBack(id, value);
    } catch (error) {
      log.error({ err: error, capsule: id }, "a capsule could not be given back yet");
      onDoubt(id);
    }
  }
}
