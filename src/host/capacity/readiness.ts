/** Why this machine can make no capsule now, for probes. Measured at most once a second. */

const validMs = 1_000;

/** Resolves with a sentence for each obstacle. */
export type ReadinessCheck = () => Promise<string[]>;

export class Readiness {
  readonly #checks: ReadinessCheck[];
  readonly #now: () => number;
  #latest: { atMs: number; reasons: Promise<string[]> } | undefined;

  constructor(checks: ReadinessCheck[], now: () => number = () => performance.now()) {
    this.#checks = checks;
    this.#now = now;
  }

  /** Empty: a capsule can be made. */
  reasons(): Promise<string[]> {
    const atMs = this.#now();
    if (this.#latest === undefined || atMs - this.#latest.atMs >= validMs) {
      this.#latest = { atMs, reasons: this.#measure() };
    }
    return this.#latest.reasons;
  }

  async #measure(): Promise<string[]> {
    const found = await Promise.all(this.#checks.map((check) => check().catch((error: Error) => [error.message])));
    return found.flat();
  }
}
