/**
 * Capsules that leave this host. The statement is committed here first, with sync. From then on the capsule is not this host's until
 * PostgreSQL has said so: its row refuses requests, and the same statement is sent until it has an answer. Then the folder is set aside,
 * and the row goes without a tombstone (docs/adr/0119).
 */
import type { Clock } from "../capsules/clock.ts";
import type { Decisions } from "../capsules/decisions.ts";
import type { CapsuleLocks } from "../capsules/locks.ts";
import type { Capsule, CapsuleStore } from "../capsules/store.ts";
import type { HoldingRows } from "../db/holding-rows.ts";
import type { Log } from "../log.ts";
import type { ClusterStep, Copies } from "./copies.ts";
import { Refusal, Unanswered } from "./failures.ts";
import type { Me } from "./membership.ts";
import type { Postgres } from "./postgres.ts";
import { type Checkpoint, releaseColumns } from "./released.ts";
import { jsonOf } from "./rows.ts";

/** The folders of this host. */
export interface AsideFolders {
  /** capsules/<id> → released/<id>.<epoch>.<revision>, durably. Idempotent. */
  setAside(id: string, of: { epoch: number; revision: number }): Promise<void>;
}

export interface LeavingOptions {
  sql: Pick<Postgres, "call" | "isAway">;
  me: Pick<Me, "name">;
  store: Pick<CapsuleStore, "get" | "leaving" | "remove">;
  holding: HoldingRows;
  copies: Pick<Copies, "next">;
  clock: Pick<Clock, "now">;
  log: Log;
  step?: ClusterStep | undefined;
  /** The capsule is unknown to PostgreSQL: it was destroyed elsewhere, and is ended here. */
  onDoubt: (id: string) => void;
}

/** The parts of the service that a capsule leaves. */
export interface LeftService {
  decisions: Pick<Decisions, "make">;
  locks: Pick<CapsuleLocks, "runExclusive">;
  folders: AsideFolders;
  /** Writes what is kept in memory of a capsule's connections. */
  flush: () => void;
  /** Forgets what is kept in memory of a capsule whose row has gone, and files that only it has needed. */
  forget: (row: Capsule) => Promise<void>;
}

/** The part of `releasing`, the row of the statement, that is read again. */
interface Asked {
  prefix: string;
  savedRevision: number;
}

export class Leaving {
  readonly #options: LeavingOptions;
  #service: LeftService | undefined;
  /** Capsules whose conclusion is under way. */
  readonly #concluding = new Set<string>();

  /** Rows whose release may have been under way when the daemon ended refuse requests from now on. */
  constructor(options: LeavingOptions) {
    this.#options = options;
    for (const { id } of options.holding.allReleasing()) options.store.leaving.add(id);
  }

  open(service: LeftService): void {
    this.#service = service;
  }

  /** Prefixes in the bucket that a release under way names. */
  prefixes(): string[] {
    return this.#options.holding.allReleasing().map(({ releasing }) => askedOf(releasing).prefix);
  }

  /**
   * Resolves with true when no host holds the capsule any longer, and with false, nothing being changed, where it is not the one any more
   * that was uploaded: of this revision, and paused. Rejects where that is not known; it is asked again then.
   */
  async release(id: string, revision: number, checkpoint: Checkpoint): Promise<boolean> {
    let isBegun = false;
    await this.#alone(id, async () => {
      isBegun = this.#begin(id, revision, checkpoint);
      if (isBegun) await this.#conclude(id);
    });
    return isBegun;
  }

  get hasAny(): boolean {
    // A release that waits for its turn is concluding, and not leaving yet.
    return [...this.#options.store.leaving].some((id) => !this.#concluding.has(id));
  }

  /** Asks again for all whose answer is not known, one after the other, until one has no answer. Never rejects. */
  async settle(): Promise<void> {
    const { store, sql, log } = this.#options;
    for (const id of [...store.leaving]) {
      if (this.#concluding.has(id)) continue;
      try {
        await this.#alone(id, () => this.#conclude(id));
      } catch (error) {
        if (error instanceof Unanswered || sql.isAway || isForgetful(error)) return;
        log.error({ err: error, capsule: id }, "the release of a capsule could not be settled; it will be tried again");
      }
    }
  }

  /** No other change of the capsule, and no decision about it, is under way. */
  async #alone(id: string, work: () => Promise<void>): Promise<void> {
    if (this.#service === undefined) throw new Error("the service was not started");
    const { locks, decisions } = this.#service;
    this.#concluding.add(id);
    try {
      await locks.runExclusive(id, async () => {
        await decisions.make(id, work, () => {});
      });
    } finally {
      this.#concluding.delete(id);
    }
  }

  /** Committed, with sync, when it returns true. */
  #begin(id: string, revision: number, checkpoint: Checkpoint): boolean {
    const { store, holding, copies, step } = this.#options;
    const row = store.get(id);
    if (row === undefined || row.revision !== revision || !isReleasable(row) || store.leaving.has(id)) return false;
    this.#service?.flush();
    const kept = holding.kept(id);
    if (kept === undefined) return false;
    const isMoving = holding.isMoving(id);
    const columns = releaseColumns({ row, kept, checkpoint: { ...checkpoint, revision }, isMoving });
    // All of it in one turn: nothing changes between the reading and the mark.
    if (!holding.setReleasing(id, revision, jsonOf({ ...columns, copy: copies.next() }))) return false;
    store.leaving.add(id);
    step?.("releasing");
    return true;
  }

  async #conclude(id: string): Promise<void> {
    const { store, holding, clock, step } = this.#options;
    const [row, releasing, epoch] = [store.get(id), holding.releasing(id), holding.epoch(id)];
    if (row === undefined || releasing === null || row.intent === "destroy") {
      store.leaving.delete(id);
      return;
    }
    const later = await this.#send(id, epoch, releasing);
    if (later !== undefined) {
      holding.takeBack(id, later);
      store.leaving.delete(id);
      return;
    }
    step?.("released");
    const { savedRevision } = askedOf(releasing);
    await this.#service?.folders.setAside(id, { epoch, revision: savedRevision });
    if (store.get(id)?.intent === "destroy") return; // which it was told of elsewhere
    holding.released.note({ id, epoch, columns: releasing }, clock.now());
    store.remove(id); // with sync, and so is what was noted
    await this.#service?.forget(row).catch((error: unknown) => {
      this.#options.log.error({ err: error, capsule: id }, "files that a released capsule has needed stay here");
    });
  }

  /**
   * Resolves when this host does not hold the capsule: by this statement, or since an earlier one. With a number: it is refused for good,
   * since PostgreSQL has a later revision, of a change that a power cut has undone here.
   */
  async #send(id: string, epoch: number, releasing: string): Promise<number | undefined> {
    const { sql, me, onDoubt } = this.#options;
    try {
      await sql.call("release_capsule", [id, epoch, me.name, releasing], { what: `release capsule ${id}` });
      return undefined;
    } catch (error) {
      // Another host has acquired it by now: an earlier statement has come to its end.
      if (error instanceof Refusal && error.raised === "CP008") return undefined;
      if (error instanceof Refusal && error.raised === "CP009") return Number(error.about.revision);
      if (error instanceof Refusal && error.raised === "CP003") onDoubt(id);
      throw error;
    }
  }
}

/** The database was put back: it may have forgotten who holds the capsule, and is asked again when that is confirmed. */
function isForgetful(error: unknown): boolean {
  return error instanceof Refusal && error.raised === "CP016";
}

/** Paused, by no change under way, and on a template that is there. */
export function isReleasable({ status, intent, blockedBy }: Capsule): boolean {
  return status === "paused" && intent === null && blockedBy === null;
}

/** As `#begin` has written it. */
function askedOf(releasing: string): Asked {
  const { checkpoint, record } = JSON.parse(releasing) as { checkpoint: string; record: { revision: number } };
  return { prefix: checkpoint, savedRevision: record.revision };
}
