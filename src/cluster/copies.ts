/**
 * Status copies: what PostgreSQL shows of the capsules that this host holds. They are written behind each change, in batches, one batch
 * at a time. Every one has a number that only rises, so that a late statement never overwrites a later copy.
 */
import type { Clock } from "../capsules/clock.ts";
import type { Capsule, CapsuleStore } from "../capsules/store.ts";
import { Counts } from "../counts.ts";
import type { HoldingRows } from "../db/holding-rows.ts";
import type { Log } from "../log.ts";
import type { Postgres } from "./postgres.ts";
import { columnsOf, jsonOf } from "./rows.ts";

export interface CopiesOptions {
  sql: Postgres;
  store: Pick<CapsuleStore, "get" | "all" | "onRow">;
  /** The epochs of capsules. */
  holding: Pick<HoldingRows, "epoch">;
  host: { name: string; epoch: number };
  clock: Clock;
  log: Log;
  /** Called behind each batch. */
  onCopied: () => void;
  step?: ClusterStep | undefined;
}

/** Called when PostgreSQL has committed, and nothing of it is written here yet: fault tests end the daemon there. */
export type ClusterStep = (
  name:
    | "create.decided"
    | "destroy.decided"
    | "rename.decided"
    | "capture.decided"
    | "key.decided"
    | "status.copied"
    | "acquired"
    | "fetched"
    | "held"
    | ReleaseStep,
) => void;

/** A release: committed here and not sent; sent and answered; and a chunk of its upload is in the bucket. */
export type ReleaseStep = "releasing" | "released" | "chunk";

/** Changes of this time share a statement. */
const gatherMs = 50;
const retryMs = 1_000;
/** Bounds of one statement; labels and networks of a capsule have up to 190 KiB. */
const [rowsMax, textMaxBytes] = [100, 1 << 20];
/** Numbers of one life of a daemon: epochs stay below 2^21. */
const perEpoch = 2 ** 32;

export class Copies {
  readonly #options: CopiesOptions;
  /** Capsules to copy, with the ticks of the first change that was not copied yet. */
  readonly #marked = new Map<string, number>();
  /** Capsules whose rows are about to be changed by decisions, with the number of these. */
  readonly #held = new Counts();
  #number: number;
  #cancel: (() => void) | undefined;
  #flushing: Promise<void> | undefined;
  #isStopped = false;

  constructor(options: CopiesOptions) {
    this.#options = options;
    this.#number = options.host.epoch * perEpoch;
  }

  /** Call it once, before any change. */
  follow(): void {
    this.#options.store.onRow((id) => this.mark(id));
  }

  /** The number of the next copy, or of a decision that changes a row as a copy does. */
  next(): number {
    this.#number += 1;
    return this.#number;
  }

  /** A daemon that has not joined anew goes on behind the numbers of its life before. */
  async goOn(): Promise<void> {
    const { sql, host } = this.#options;
    const [found] = await sql.query<{ copy: number }>(
      "SELECT COALESCE(MAX(copy), 0) AS copy FROM capsules WHERE host = $1",
      [host.name],
      { what: "read the last status copies" },
    );
    const copy = found?.copy ?? 0;
    if (copy >= this.#number) this.#number = copy + 1_000;
  }

  mark(id: string): void {
    if (!this.#marked.has(id)) this.#marked.set(id, this.#options.clock.ticks());
    this.#schedule(gatherMs);
  }

  /**
   * Until the returned function is called, the capsule is not copied: a decision with a number is asked for, and a copy with the next one
   * would show the row as it was before.
   */
  hold(id: string): () => void {
    this.#held.add(id);
    return () => {
      this.#held.subtract(id);
      this.mark(id);
    };
  }

  markAll(): void {
    for (const { id } of this.#options.store.all()) this.mark(id);
  }

  /** Age of the oldest change that was not copied yet. */
  get lagMs(): number {
    const [oldest] = this.#marked.values();
    return oldest === undefined ? 0 : this.#options.clock.ticks() - oldest;
  }

  /** Copies what is marked now. Resolves when all of it was sent, or a statement has failed. */
  async flush(): Promise<void> {
    this.#cancel?.();
    this.#cancel = undefined;
    await this.#flushing;
    this.#flushing ??= this.#flushAll().finally(() => {
      this.#flushing = undefined;
    });
    await this.#flushing;
  }

  async stop(): Promise<void> {
    await this.flush();
    this.#isStopped = true;
    this.#cancel?.();
  }

  #schedule(ms: number): void {
    if (this.#cancel !== undefined || this.#flushing !== undefined || this.#isStopped) return;
    this.#cancel = this.#options.clock.after(ms, () => void this.flush());
  }

  async #flushAll(): Promise<void> {
    const { sql, host, log, onCopied, step } = this.#options;
    let pauseMs = gatherMs;
    while (this.#marked.size > 0) {
      const batch = this.#take();
      try {
        if (batch.rows.length > 0) {
          await sql.call("copy_status", [jsonOf(batch.rows), host.name], { what: "copy the status of capsules" });
          step?.("status.copied");
        }
        onCopied();
      } catch (error) {
        if (!sql.isAway)
          log.error({ err: error }, "the status of capsules could not be copied; it will be tried again");
        for (const [id, since] of batch.taken) this.#marked.set(id, Math.min(since, this.#marked.get(id) ?? since));
        pauseMs = retryMs;
        break;
      }
    }
    // Scheduled behind the end of this flush.
    if (this.#marked.size > 0) queueMicrotask(() => this.#options.clock.after(0, () => this.#schedule(pauseMs)));
  }

  /** The rows as they are now. */
  #take(): { rows: object[]; taken: [string, number][] } {
    const rows: object[] = [];
    const taken: [string, number][] = [];
    let bytes = 0;
    for (const [id, since] of this.#marked) {
      if (rows.length >= rowsMax || bytes >= textMaxBytes) break;
      this.#marked.delete(id);
      if (this.#held.of(id) > 0) continue; // it is marked again
      taken.push([id, since]);
      const row = this.#options.store.get(id);
      if (row === undefined || row.intent === "destroy") continue;
      rows.push(this.#copyOf(row));
      bytes += row.labels.length + (row.network?.length ?? 0);
    }
    return { rows, taken };
  }

  #copyOf(row: Capsule): object {
    return { ...columnsOf(row), epoch: this.#options.holding.epoch(row.id), copy: this.next() };
  }
}
