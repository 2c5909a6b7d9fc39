/**
 * Tells repeated reads from first ones, for the audit log: a client that polls a file or the processes would push all other
 * entries out of it. A read counts as repeated when the same key has had the same answer to it less than a minute ago.
 */
const repeatMs = 60_000;
/** Remembered reads of all teams; beyond them the oldest is forgotten, and leaves an entry when it is repeated. */
const readsMax = 10_000;

export class RepeatedReads {
  readonly #now: () => number;
  /** Time of the last entry, by read; oldest first. */
  readonly #entries = new Map<string, number>();

  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
  }

  /** False for a read that deserves an entry, which is remembered. `parts` name everything that distinguishes a read. */
  isRepeated(parts: readonly unknown[]): boolean {
    const read = JSON.stringify(parts);
    const now = this.#now();
    const last = this.#entries.get(read);
    if (last !== undefined && now - last < repeatMs) return true;
    this.#entries.delete(read);
    this.#entries.set(read, now);
    const [oldest] = this.#entries.keys();
    if (this.#entries.size > readsMax && oldest !== undefined) this.#entries.delete(oldest);
    return false;
  }
}
