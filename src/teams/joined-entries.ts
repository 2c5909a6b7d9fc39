/**
 * Joins audit entries that would differ in little but their time, so that a client that polls a file, or asks again and again
 * for what is refused, leaves one entry a minute. The first is recorded at once. The others of its minute are dropped or,
 * where they are counted, recorded as one entry at the minute's end.
 */
import { hash } from "node:crypto";
import type { NewAuditRow } from "../db/audit-rows.ts";

export type JoinableEntry = Omit<NewAuditRow, "at">;

const joinMs = 60_000;
/** Minutes under way, of all teams; beyond them the oldest ends early. */
const minutesMax = 10_000;

interface Minute {
  since: number;
  /** Entries after the first. */
  count: number;
  /** JSON: the entry's texts may be parts of a long URL or body, which they would keep in memory. */
  last: string;
}

export class JoinedEntries {
  readonly #isCounted: boolean;
  readonly #ticks: () => number;
  /** The oldest first. */
  readonly #minutes = new Map<string, Minute>();

  constructor({ isCounted, ticks }: { isCounted: boolean; ticks: () => number }) {
    this.#isCounted = isCounted;
    this.#ticks = ticks;
  }

  /** The entries to record now. `parts` name everything that distinguishes the entry from others. */
  add(parts: readonly unknown[], entry: JoinableEntry): JoinableEntry[] {
    const key = hash("sha256", JSON.stringify(parts)); // a path may have 4 KiB
    const ended = this.due();
    const minute = this.#minutes.get(key);
    if (minute !== undefined) {
      minute.count++;
      minute.last = JSON.stringify(entry);
      return ended;
    }
    this.#begin(key, JSON.stringify(entry));
    const [oldest] = this.#minutes.keys();
    if (this.#minutes.size > minutesMax && oldest !== undefined) ended.push(...this.#end(oldest));
    return [...ended, entry];
  }

  /** The entries of the minutes that have ended. Call it at least once a second. */
  due(): JoinableEntry[] {
    const entries: JoinableEntry[] = [];
    for (const [key, { since, last }] of this.#minutes) {
      if (this.#ticks() - since < joinMs) break;
      const ended = this.#end(key);
      // The next one of a flood belongs to the next minute's entry.
      if (ended.length > 0) this.#begin(key, last);
      entries.push(...ended);
    }
    return entries;
  }

  /** Ends all minutes. */
  drain(): JoinableEntry[] {
    return [...this.#minutes.keys()].flatMap((key) => this.#end(key));
  }

  #begin(key: string, last: string): void {
    this.#minutes.set(key, { since: this.#ticks(), count: 0, last });
  }

  #end(key: string): JoinableEntry[] {
    const minute = this.#minutes.get(key);
    this.#minutes.delete(key);
    if (minute === undefined || minute.count === 0 || !this.#isCounted) return [];
    const subject = `${minute.count} more such requests within a minute, of which this is the last`;
    return [{ ...(JSON.parse(minute.last) as JoinableEntry), subject }];
  }
}
