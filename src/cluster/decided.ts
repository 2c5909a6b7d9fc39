/** Decisions in PostgreSQL about who holds a capsule: the port `Ownership` of a host of a cluster. */
import { setTimeout as delay } from "node:timers/promises";
import type { Clock } from "../capsules/clock.ts";
import {
  type DecidedTemplate,
  type KeyedAnswer,
  type NewTemplate,
  type Ownership,
  Undecided,
} from "../capsules/ownership.ts";
import type { Capsule } from "../capsules/store.ts";
import type { HoldingRows } from "../db/holding-rows.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Artifacts } from "./artifacts.ts";
import type { ClusterStep, Copies } from "./copies.ts";
import { Refusal, Unanswered } from "./failures.ts";
import type { Me, Membership } from "./membership.ts";
import type { Postgres } from "./postgres.ts";
import { columnsOf, jsonOf } from "./rows.ts";

export interface DecidedOptions {
  sql: Postgres;
  me: Me;
  membership: Pick<Membership, "isExpired" | "isPutBack" | "state">;
  /** The epochs of capsules. */
  holding: Pick<HoldingRows, "epoch">;
  copies: Pick<Copies, "next" | "hold">;
  clock: Pick<Clock, "after">;
  /** A question about this capsule had no answer: it is settled as soon as the database answers. */
  onDoubt: (id: string) => void;
  /** How long a resume waits for its decision; default 250 ms. */
  resumeMs?: number | undefined;
  step?: ClusterStep | undefined;
  /** Undefined: the cluster has no bucket. */
  artifacts?: Pick<Artifacts, "offer" | "withdraw"> | undefined;
}

/** A resume of a capsule that is held does not wait longer: the host's own bounds then decide. */
const defaultResumeMs = 250;
/** A request that has waited for an acquire goes on in milliseconds, or its client has gone. */
const admittedMs = 5_000;
const askAgainMs = 1_000;
export const putBackReason = "the cluster's database was put back, which its operator has not confirmed yet";
/** Time for a template's files to be in the bucket: 4 MiB/s, and what its image and its QEMU build may take. */
const [keepMs, keepBytesPerMs] = [120_000, 4_194];
/** Status copies that overtake one question. */
const overtakenMax = 10;

export class DecidedByDatabase implements Ownership {
  readonly #options: DecidedOptions;
  /** Creates that are asked for: they have a row in PostgreSQL before they have one here. */
  readonly creating = new Set<string>();
  /** Storages of captures that are asked for. */
  readonly capturing = new Set<string>();
  /** Capsules whose capture may be decided, and is asked for again. */
  readonly inDoubt = new Set<string>();
  /** Capsules that were acquired for a resume which has not begun; the functions let their rows be copied. */
  readonly #admitted = new Map<string, () => void>();
  #deciding = 0;

  constructor(options: DecidedOptions) {
    this.#options = options;
  }

  /** Questions whose outcome is in no row here yet. */
  get isDeciding(): boolean {
    return this.#deciding > 0;
  }

  /**
   * A decision on something that this host need not hold. The change here, of which a database that was put back is told, has to follow the
   * answer in the same turn. Rejects with "unavailable" while the place of the database is not the cluster's.
   */
  async decide<T>(what: string, ask: () => Promise<T>): Promise<T> {
    this.#requireOwnPlace(what);
    return await this.#noted(ask());
  }

  requireCreates(): void {
    this.#requireOwnPlace("create a capsule");
    const { membership, me } = this.#options;
    if (membership.isExpired)
      throw new CapsuleError("unavailable", "cannot create a capsule: the cluster's database is away");
    if (membership.state !== "up")
      throw new CapsuleError("no_capacity", `cannot create a capsule: host ${me.name} is drained`);
  }

  #requireOwnPlace(what: string): void {
    if (!this.#options.membership.isPutBack) return;
    throw new CapsuleError("unavailable", `cannot ${what}: ${putBackReason}`);
  }

  async create(row: Capsule, answer: () => KeyedAnswer | undefined): Promise<void> {
    const { sql, me, copies } = this.#options;
    const keyed = answer();
    const kept = keyed === undefined ? null : jsonOf(keyColumns(row.teamId, keyed));
    this.creating.add(row.id);
    try {
      const values = [jsonOf(columnsOf(row)), me.name, me.epoch, copies.next(), kept];
      await this.#settledBy(row.id, sql.call("create_capsule", values, { what: "create a capsule" }));
      this.#options.step?.("create.decided");
    } catch (error) {
      throw keyed === undefined ? error : sameKey(error, keyed);
    } finally {
      // The row here follows in the same turn.
      setImmediate(() => this.creating.delete(row.id));
    }
  }

  /**
   * The next resume of this capsule was admitted when it was acquired, if it begins within 5 s. `free` is called when its intent is about
   * to be in the row, or when it is too late: the row is copied then as it is.
   */
  admitted(id: string, free: () => void): void {
    const end = () => {
      cancel();
      if (this.#admitted.get(id) === end) this.#admitted.delete(id);
      free();
    };
    const cancel = this.#options.clock.after(admittedMs, end);
    this.#admitted.get(id)?.();
    this.#admitted.set(id, end);
  }

  /** Without an answer in 250 ms the resume goes on: the capsule is held here, whatever the database does. */
  async admitResume(row: Capsule): Promise<void> {
    const admitted = this.#admitted.get(row.id);
    if (admitted !== undefined) {
      admitted();
      return;
    }
    const { sql, me, copies, resumeMs = defaultResumeMs } = this.#options;
    const intent = row.status === "paused" ? "resume" : "start";
    const ask = (copy: number) =>
      sql.call("admit_resume", [row.id, this.#epoch(row.id), me.name, me.epoch, intent, copy], {
        what: `${intent} a capsule`,
      });
    const release = copies.hold(row.id);
    let isAwaited = true;
    const asked = this.#numbered(ask, () => isAwaited).catch((error: unknown) => {
      if (!(error instanceof Unanswered)) throw error;
    });
    const { promise: late, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, resumeMs);
    try {
      await Promise.race([asked, late]);
    } finally {
      clearTimeout(timer);
      isAwaited = false;
      asked.catch(() => {}); // a refusal that came late
      release(); // the intent follows in the same turn
    }
  }

  async destroy(row: Capsule): Promise<void> {
    const { sql, me } = this.#options;
    this.#requireOwnPlace(`destroy capsule ${row.id}`);
    try {
      const values = [row.id, this.#epoch(row.id), me.name];
      await this.#settledBy(row.id, sql.call("delete_capsule", values, { what: `destroy capsule ${row.id}` }));
      this.#options.step?.("destroy.decided");
    } catch (error) {
      if (error instanceof Refusal && error.raised === "CP003") return; // it is nobody's: nothing is to be decided
      throw error;
    }
  }

  async unmake({ id }: Capsule): Promise<void> {
    const { sql, me } = this.#options;
    await this.#settledBy(
      id,
      sql.call("undo_create", [id, this.#epoch(id), me.name], { what: `undo the create of ${id}` }),
    );
  }

  async keepFiles(
    { storage, sizeBytes }: Pick<NewTemplate, "storage" | "sizeBytes">,
    signal: AbortSignal,
  ): Promise<void> {
    const { artifacts } = this.#options;
    if (artifacts === undefined) return;
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(tooSlow()), keepMs + sizeBytes / keepBytesPerMs);
    try {
      await artifacts.offer("template", storage, AbortSignal.any([signal, late.signal]));
    } finally {
      clearTimeout(timer);
    }
  }

  async dropFiles(storage: string): Promise<void> {
    await this.#options.artifacts?.withdraw(storage);
  }

  async capture(row: Capsule, template: NewTemplate, answer: () => KeyedAnswer | undefined): Promise<void> {
    const { sql, me } = this.#options;
    this.#requireOwnPlace(`capture capsule ${row.id}`);
    const { storage, name, overwrites, sizeBytes, canGrow, createdAt } = template;
    const columns = {
      ...{ storage, team_id: row.teamId, name, vcpus: row.vcpus, memory_mb: row.memoryMb, disk_mb: row.diskMb },
      ...{ can_grow: canGrow ? 1 : 0, size_bytes: sizeBytes, created_at: createdAt },
    };
    this.capturing.add(storage);
    const keyed = answer();
    const kept = keyed === undefined ? null : jsonOf(keyColumns(row.teamId, keyed));
    const values = [row.id, this.#epoch(row.id), me.name, me.epoch, jsonOf(columns), overwrites, kept];
    const ask = () => sql.call("capture_capsule", values, { what: `capture capsule ${row.id}` });
    try {
      await this.#untilAnswered(row.id, ask);
      this.#options.step?.("capture.decided");
    } catch (error) {
      throw keyed === undefined ? error : sameKey(error, keyed);
    } finally {
      this.inDoubt.delete(row.id);
      setImmediate(() => this.capturing.delete(storage));
    }
  }

  async captured({ id }: Capsule): Promise<DecidedTemplate | undefined> {
    const [found] = await this.#options.sql.query<Omit<DecidedTemplate, "canGrow"> & { canGrow: number }>(
      `SELECT t.storage, t.name, true AS overwrites, t.size_bytes AS "sizeBytes", t.can_grow AS "canGrow",
         t.created_at AS "createdAt", t.retired_at AS "retiredAt"
       FROM tombstones b JOIN templates t ON t.storage = b.captured_as WHERE b.id = $1`,
      [id],
      { what: `ask whether capsule ${id} was captured` },
    );
    return found === undefined ? undefined : { ...found, canGrow: found.canGrow === 1 };
  }

  /** The question is repeated while its outcome is not known: the template's files are needed, or are not. */
  async #untilAnswered(id: string, ask: () => Promise<unknown>): Promise<void> {
    for (let mayHaveRun = false; ; ) {
      try {
        await this.#noted(ask());
        return;
      } catch (error) {
        if (!(error instanceof Unanswered)) throw error;
        mayHaveRun ||= error.mayHaveRun;
        if (!mayHaveRun) throw error;
        this.inDoubt.add(id);
        if (this.#options.sql.isClosed) throw new Undecided(id, error);
      }
      await delay(askAgainMs, undefined, { ref: false });
    }
  }

  async rename(row: Capsule, name: string | null): Promise<void> {
    const { sql, me } = this.#options;
    this.#requireOwnPlace(`rename capsule ${row.id}`);
    const ask = (copy: number) =>
      sql.call("rename_capsule", [row.id, this.#epoch(row.id), me.name, name, copy], {
        what: `rename capsule ${row.id}`,
      });
    const release = this.#options.copies.hold(row.id);
    await this.#settledBy(row.id, this.#numbered(ask)).finally(release);
    this.#options.step?.("rename.decided");
  }

  #epoch(id: string): number {
    return this.#options.holding.epoch(id);
  }

  /** Asks again when a status copy with a later number, on another connection, has come before the question. */
  async #numbered(ask: (copy: number) => Promise<unknown>, isAwaited = () => true): Promise<void> {
    for (let left = overtakenMax; ; left--) {
      try {
        await ask(this.#options.copies.next());
        return;
      } catch (error) {
        const isOvertaken = error instanceof Refusal && error.raised === "CP009";
        if (!isOvertaken || left === 0 || !isAwaited()) throw error;
      }
    }
  }

  /** The row here follows its answer in the same turn. */
  async #noted<T>(asked: Promise<T>): Promise<T> {
    this.#deciding += 1;
    try {
      return await asked;
    } finally {
      setImmediate(() => {
        this.#deciding -= 1;
      });
    }
  }

  async #settledBy(id: string, asked: Promise<unknown>): Promise<void> {
    try {
      await this.#noted(asked);
    } catch (error) {
      if (error instanceof Unanswered) this.#options.onDoubt(id);
      throw error;
    }
  }
}

function tooSlow(): CapsuleError {
  return new CapsuleError("unavailable", "cannot capture: the bucket has taken too long");
}

function keyColumns(teamId: string, { route, key, bodyHash, status, answer, keepMs }: KeyedAnswer) {
  return { team_id: teamId, route, key, body_hash: bodyHash, status, answer, keep_ms: keepMs };
}

/** Another host was faster with the same request: its answer is there when the request is repeated. */
function sameKey(error: unknown, { bodyHash }: KeyedAnswer): unknown {
  if (!(error instanceof Refusal) || error.raised !== "CP007") return error;
  if (error.about.body_hash !== bodyHash)
    return new CapsuleError("conflict", "the Idempotency-Key was used with another body; use a new key");
  const message = "a request with the same Idempotency-Key was answered by another host meanwhile; repeat it";
  return new CapsuleError("unavailable", message, { retryAfterSec: 1 });
}
