/** Decides who holds a capsule as a service of several hosts does: later, and not at all where a test tells it to. */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { Ownership } from "../../src/capsules/ownership.ts";
import type { Capsule } from "../../src/capsules/store.ts";
import { Random } from "../conformance/random.ts";

export type OwnershipVerb = keyof Ownership;

export class FakeOwnership implements Ownership {
  /** Capsules that the host holds, with their names. */
  readonly held = new Map<string, string | null>();
  /** Decisions about these were made, and their answers were lost. */
  readonly unanswered = new Set<string>();
  /** Each call, in order. */
  readonly calls: OwnershipVerb[] = [];
  /** Decides at once. */
  isQuick = false;
  /** Awaited before each decision, and before its answer. */
  moment: (verb: OwnershipVerb, id: string) => Promise<void> = () => Promise.resolve();
  /** Called before a decision; an error that it throws is a refusal. */
  refuse: (verb: OwnershipVerb, id: string) => void = () => {};
  /** Called after a decision; an error that it throws comes in place of its answer. */
  lose: (verb: OwnershipVerb, id: string) => void = () => {};

  create(row: Capsule) {
    return this.#decide("create", row, () => this.held.set(row.id, row.name));
  }

  admitResume(row: Capsule) {
    return this.#decide("admitResume", row, () => {});
  }

  destroy(row: Capsule) {
    return this.#decide("destroy", row, () => this.held.delete(row.id));
  }

  capture(row: Capsule) {
    return this.#decide("capture", row, () => this.held.delete(row.id));
  }

  rename(row: Capsule, name: string | null) {
    return this.#decide("rename", row, () => this.held.set(row.id, name));
  }

  #decide(verb: OwnershipVerb, { id }: Capsule, effect: () => void): Promise<void> | undefined {
    this.calls.push(verb);
    if (this.isQuick) {
      effect();
      return undefined;
    }
    return this.#later(verb, id, effect);
  }

  async #later(verb: OwnershipVerb, id: string, effect: () => void): Promise<void> {
    await this.moment(verb, id);
    this.refuse(verb, id);
    effect();
    await this.moment(verb, id);
    try {
      this.lose(verb, id);
    } catch (error) {
      this.unanswered.add(id);
      throw error;
    }
  }
}

/** Decides after up to two turns of the event loop, and refuses nothing. */
export function slowOwnership(seed: number): FakeOwnership {
  const random = new Random(seed);
  const ownership = new FakeOwnership();
  ownership.moment = async () => {
    for (let left = random.below(3); left > 0; left--) await nextTurn();
  };
  return ownership;
}
