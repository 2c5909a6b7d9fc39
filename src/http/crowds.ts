/** How many requests of each team are under way, so that no team can take the whole server by waiting in it. */
import { CapsuleError } from "../wire/errors.ts";

export class Crowds {
  readonly #max: number;
  readonly #sizes = new Map<string, number>();

  constructor(max: number) {
    this.#max = max;
  }

  /** One more; call what is returned when it has left. Throws quota_exceeded. */
  join(teamId: string): () => void {
    const size = this.of(teamId);
    if (size >= this.#max) {
      throw new CapsuleError("quota_exceeded", `the team has ${size} requests under way, as many as it may`, {
        retryAfterSec: 1,
      });
    }
    this.#sizes.set(teamId, size + 1);
    let isIn = true;
    return () => {
      if (!isIn) return;
      isIn = false;
      const left = this.of(teamId) - 1;
      if (left > 0) this.#sizes.set(teamId, left);
      else this.#sizes.delete(teamId);
    };
  }

  of(teamId: string): number {
    return this.#sizes.get(teamId) ?? 0;
  }
}
