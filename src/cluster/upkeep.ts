/**
 * The periodic work of a host of a cluster with a bucket, every 30 to 60 s at a time of its own: released capsules whose retention has
 * ended, garbage in the bucket, and the folders of released capsules that are kept here. All hosts do it, and none is needed.
 */
import type { Bucket } from "../bucket/bucket.ts";
import type { Clock } from "../capsules/clock.ts";
import type { CapsuleStore } from "../capsules/store.ts";
import type { HoldingRows } from "../db/holding-rows.ts";
import type { Log } from "../log.ts";
import { Collector } from "./collector.ts";
import type { Postgres } from "./postgres.ts";
import { ReleasedCache, type ReleasedFolders } from "./released-cache.ts";

export interface UpkeepOptions {
  sql: Postgres;
  host: string;
  bucket: Pick<Bucket, "list" | "delete">;
  holding: Pick<HoldingRows, "uploads" | "forgetUploads" | "allReleasing">;
  folders: ReleasedFolders;
  store: Pick<CapsuleStore, "noteDestroyed">;
  /** Most bytes of the folders together. */
  cacheBytes: number;
  clock: Pick<Clock, "after">;
  log: Log;
  /** A released capsule was destroyed at the end of its retention. */
  onEnded: (teamId: string, id: string) => void;
  /** The database may have forgotten what it had committed: nothing is removed by what it says. */
  isPutBack: () => boolean;
}

/** Time between two passes: so much, and up to as much again. */
const pauseMs = 30_000;
/** Rows of one statement. */
const rowsMax = 100;
const uploadsMax = 10_000;

export class Upkeep {
  readonly #options: UpkeepOptions;
  readonly #collector: Collector;
  readonly #cache: ReleasedCache;
  readonly #stopping = new AbortController();
  /** Uploads that a former daemon has begun and nobody ends. */
  #left: string[];
  #passing: Promise<void> = Promise.resolve();
  #cancel = () => {};

  /** Before the first upload of this daemon is noted. */
  constructor(options: UpkeepOptions) {
    const { sql, host, bucket, folders, cacheBytes: bytesMax, log, holding } = options;
    this.#options = options;
    this.#collector = new Collector({ sql, bucket, log });
    this.#cache = new ReleasedCache({ sql, host, folders, bytesMax });
    // The row of a release that may be under way names its upload soon, or does already.
    const releasing = holding.allReleasing().map((row) => row.releasing);
    this.#left = holding.uploads(uploadsMax).filter((prefix) => !releasing.some((text) => text.includes(prefix)));
  }

  start(): void {
    this.#plan();
  }

  /** Resolves when nothing is under way. */
  async stop(): Promise<void> {
    this.#stopping.abort(new Error("the server is stopping"));
    this.#cancel();
    await this.#passing;
  }

  /** Resolves when no pass is under way. */
  passed(): Promise<void> {
    return this.#passing;
  }

  /** One pass. Never rejects. */
  async pass(): Promise<void> {
    await this.#try("folders of released capsules could not be removed", () => this.#cache.trim());
    await this.#byDatabase(async () => {
      await this.#try("uploads that were cut off could not be told of", () => this.#giveUp());
      await this.#try("the retention of released capsules could not be looked at", () => this.#end());
      await this.#try("folders of released capsules could not be compared", () => this.#cache.reconcile());
    });
    await this.#look();
    await this.#byDatabase(() =>
      this.#try("garbage in the bucket could not be removed", async () => {
        await this.#collector.collect(this.#stopping.signal);
      }),
    );
  }

  async #byDatabase(work: () => Promise<void>): Promise<void> {
    if (!this.#options.isPutBack()) await work();
  }

  #plan(): void {
    this.#cancel = this.#options.clock.after(pauseMs * (1 + Math.random()), () => {
      this.#passing = this.pass().then(() => {
        if (!this.#stopping.signal.aborted) this.#plan();
      });
    });
  }

  async #try(what: string, work: () => Promise<void>): Promise<void> {
    const { signal } = this.#stopping;
    if (signal.aborted) return;
    const { sql, log } = this.#options;
    try {
      await work();
    } catch (error) {
      if (!sql.isAway && !signal.aborted) log.warn({ err: error }, `${what}; it will be tried again`);
    }
  }

  /** A request without an effect, after which is known whether the bucket answers. */
  async #look(): Promise<void> {
    const looking = this.#options.bucket.list("nothing/", this.#stopping.signal).next();
    await looking.catch(() => {});
  }

  async #giveUp(): Promise<void> {
    const { sql, holding } = this.#options;
    while (this.#left.length > 0) {
      const part = this.#left.slice(0, rowsMax);
      await sql.call("add_garbage", [part], { what: "tell of an upload that was cut off" });
      holding.forgetUploads(part);
      this.#left = this.#left.slice(part.length);
    }
  }

  async #end(): Promise<void> {
    const { sql, store, onEnded } = this.#options;
    for (let found = rowsMax; found === rowsMax && !this.#stopping.signal.aborted; ) {
      const ended = await sql.call<[id: string, teamId: string][]>("end_released", [rowsMax], {
        what: "destroy released capsules at the end of their retention",
      });
      for (const [id, teamId] of ended) {
        store.noteDestroyed(id); // a database that was put back is told of it
        onEnded(teamId, id);
      }
      found = ended.length;
    }
  }
}
