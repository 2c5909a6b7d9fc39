/** The metrics of the last 15 minutes of many capsules: read once, and then only what is new. */
import { type ReadonlySignal, signal } from "@preact/signals";
import type { CapsuleMetric } from "../../src/sdk/sdk.ts";
import { forEachAtMost } from "./at-most.ts";

type Series = ReadonlyMap<string, readonly CapsuleMetric[]>;

/** Further capsules have none: each is a request. */
export const followedMax = 40;
const requestsMax = 2;
const spanMs = 900_000;

export class RecentMetrics {
  readonly #series = signal<Series>(new Map());
  readonly #read: (id: string, since: number) => Promise<CapsuleMetric[]>;

  constructor(read: (id: string, since: number) => Promise<CapsuleMetric[]>) {
    this.#read = read;
  }

  get series(): ReadonlySignal<Series> {
    return this.#series;
  }

  /** Reads these capsules; those that it has and are not among them are forgotten. A capsule that cannot be read keeps what it has. */
  async update(ids: readonly string[], now: number): Promise<void> {
    const next = new Map<string, readonly CapsuleMetric[]>();
    await forEachAtMost(requestsMax, ids.slice(0, followedMax), async (id) => {
      const known = this.#series.value.get(id) ?? [];
      const since = known.at(-1)?.at ?? now - spanMs;
      const fresh = await this.#read(id, since).catch(() => []);
      next.set(
        id,
        [...known, ...fresh].filter(({ at }) => at > now - spanMs),
      );
    });
    this.#series.value = next;
  }
}
