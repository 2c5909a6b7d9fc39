/**
 * Which listed name has an address, for connections that come with the address alone. Names are asked a few at a time within the limits of
 * questions, each once for all connections that wait for it, and not again within its TTL, or 20 seconds: a list may have more names than a
 * second has questions.
 */
import type { AddressAnswer, Resolved } from "./resolver.ts";

const askedAtOnce = 16;
const keptMax = 512;
/** Answers are kept for so long at least, also that there is no address: else the first names would use up the limits of each second. */
const keptLeastSec = 20;
const keptMostSec = 3_600;

/** `limit`: there is no place for the next question. */
export type FoundName = { name: string } | "none" | "limit";

interface Kept {
  addresses: Promise<readonly number[] | undefined>;
  untilMs: number;
}

export interface ListedLookupsOptions {
  /** Undefined: there is no place for one more question. */
  ask: (name: string) => Promise<Resolved<AddressAnswer> | undefined>;
  now?: () => number;
}

export class ListedLookups {
  readonly #options: ListedLookupsOptions;
  readonly #kept = new Map<string, Kept>();

  constructor(options: ListedLookupsOptions) {
    this.#options = options;
  }

  async nameOf(address: number, names: readonly string[]): Promise<FoundName> {
    let isLimited = false;
    for (let from = 0; from < names.length && !isLimited; from += askedAtOnce) {
      const asked = names.slice(from, from + askedAtOnce);
      const found = await Promise.all(asked.map((name) => this.#addresses(name)));
      const at = found.findIndex((addresses) => addresses?.includes(address));
      if (at !== -1) return { name: asked[at]! };
      isLimited = found.includes(undefined);
    }
    return isLimited ? "limit" : "none";
  }

  #addresses(name: string): Promise<readonly number[] | undefined> {
    const kept = this.#kept.get(name);
    if (kept !== undefined && kept.untilMs > this.#now()) return kept.addresses;
    const asked: Kept = { addresses: this.#ask(name, () => asked), untilMs: Number.POSITIVE_INFINITY };
    this.#kept.delete(name);
    this.#kept.set(name, asked);
    for (const oldest of this.#kept.keys()) {
      if (this.#kept.size <= keptMax) break;
      this.#kept.delete(oldest);
    }
    return asked.addresses;
  }

  /** Failures are kept for those that wait alone. */
  async #ask(name: string, kept: () => Kept): Promise<readonly number[] | undefined> {
    const resolved = await this.#options.ask(name);
    const records = resolved !== undefined && "found" in resolved ? resolved.found : [];
    const isAnswer = resolved !== undefined && !("failure" in resolved && resolved.failure === "failed");
    const ttlSec = Math.min(keptMostSec, ...records.map((record) => record.ttlSec));
    const keptSec = records.length === 0 ? keptLeastSec : Math.max(keptLeastSec, ttlSec);
    kept().untilMs = isAnswer ? this.#now() + keptSec * 1_000 : 0;
    return resolved === undefined ? undefined : records.map(({ address }) => address);
  }

  #now(): number {
    return (this.#options.now ?? (() => performance.now()))();
  }
}
