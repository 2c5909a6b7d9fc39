/**
 * The collector removes from the bucket what no row names any more, a day after the last row did: a backup of PostgreSQL that is put
 * back finds its objects. It may stop anywhere; what was begun is taken again later.
 */
import type { Bucket } from "../bucket/bucket.ts";
import { inLanes } from "../bucket/parallel.ts";
import type { Log } from "../log.ts";
import type { Postgres } from "./postgres.ts";

export interface CollectorOptions {
  sql: Pick<Postgres, "call">;
  bucket: Pick<Bucket, "list" | "delete">;
  log: Log;
}

const keepMs = 24 * 3_600_000;
/** Time until a prefix whose removal did not end is taken again. */
const againMs = 600_000;
/** Prefixes of one pass. */
const prefixesMax = 20;
const lanes = 8;
/** Names of objects that are kept in memory. */
const namesMax = 1_000;
/** Anything else would be more than one upload: the database is not trusted with the whole bucket. */
const prefixPattern = /^(capsules|image|qemu|base|template)(\/[a-zA-Z0-9][a-zA-Z0-9._-]*){2,4}$/;

export class Collector {
  readonly #options: CollectorOptions;

  constructor(options: CollectorOptions) {
    this.#options = options;
  }

  /** One pass. Resolves with the number of prefixes that were removed. Throws "unavailable", also of the bucket, or the signal's reason. */
  async collect(signal: AbortSignal): Promise<number> {
    const { sql, log } = this.#options;
    const taken = await sql.call<string[]>("take_garbage", [keepMs, againMs, prefixesMax], { what: "take garbage" });
    let removed = 0;
    for (const prefix of taken) {
      signal.throwIfAborted();
      if (!prefixPattern.test(prefix)) {
        log.error({ prefix }, "a prefix of the bucket is no upload's, and was not removed");
        continue;
      }
      await this.#remove(`${prefix}/`, signal);
      await sql.call("drop_garbage", [prefix], { what: "note that garbage is gone" });
      removed++;
    }
    return removed;
  }

  async #remove(prefix: string, signal: AbortSignal): Promise<void> {
    let names: string[] = [];
    for await (const name of this.#options.bucket.list(prefix, signal)) {
      if (!name.startsWith(prefix))
        throw new Error(`the bucket lists ${JSON.stringify(name.slice(0, 200))} below ${prefix}`);
      names.push(name);
      if (names.length < namesMax) continue;
      await this.#delete(names, signal);
      names = [];
    }
    await this.#delete(names, signal);
  }

  async #delete(names: readonly string[], signal: AbortSignal): Promise<void> {
    const { bucket } = this.#options;
    await inLanes(names, { count: lanes, signal, lane: () => (name) => bucket.delete(name, signal) });
  }
}
