/** How many requests of each team are under way, so that no team can take the whole server by waiting in it. */
import { CapsuleError } from "../../wire/errors.ts";

interface Crowd {
  size: number;
}

export class InFlightLimiter {
  readonly #max: number;
  /** Of all teams that have asked: only the operator makes teams, so there are not too many to remember. */
  readonly #crowds = new Map<string, Crowd>();

  constructor(max: number) {
    this.#max = max;
  }

  /** One more; call what is returned once, when it has left. Throws quota_exceeded. */
  enter(teamId: string): () => void {
    const crowd = this.#crowd(teamId);
    if (crowd.size >= this.#max) {
      throw new CapsuleError("quota_exceeded", `the team has ${crowd.size} requests under way, as many as it may`, {
        retryAfterSec: 1,
      });
    }
    crowd.size += 1;
    return () => {
      crowd.size -= 1;
    };
  }

  of(teamId: string): number {
    return this.#crowds.get(teamId)?.size ?? 0;
  }

  #crowd(teamId: string): Crowd {
    let crowd = this.#crowds.get(teamId);
    if (crowd === undefined) {
      crowd = { size: 0 };
      this.#crowds.set(teamId, crowd);
    }
    return crowd;
  }
}
