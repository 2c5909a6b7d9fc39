/** Reproducible random choices: the seed is printed, and CAPSULE_TEST_SEED sets it. */
import { randomInt } from "node:crypto";
import type { TestContext } from "node:test";

export class Random {
  #state: number;

  /** With the seed of a test, or with a given seed. */
  constructor(from: TestContext | number) {
    this.#state = typeof from === "number" ? from : seedOf(from);
  }

  /** 0 ≤ x < 1 (mulberry32). */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }

  below(bound: number): number {
    return Math.floor(this.next() * bound);
  }

  /** 0 to max, with each order of magnitude equally likely. */
  size(max: number): number {
    return Math.floor((max + 1) ** this.next()) - 1;
  }

  bytes(count: number): Buffer {
    return Buffer.from(Array.from({ length: count }, () => this.below(256)));
  }
}

export function seedOf(t: TestContext): number {
  const seed = Number(process.env.CAPSULE_TEST_SEED ?? randomInt(2 ** 31));
  t.diagnostic(`CAPSULE_TEST_SEED=${seed}`);
  return seed;
}
