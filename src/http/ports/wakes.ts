/** Requests at ports' URLs that wait for the resume of a paused capsule: all of one capsule for the same. */
import { Counts } from "../../counts.ts";
import type { Grant } from "./port-access.ts";
import { PublicWakes } from "./public-wakes.ts";

export class Wakes {
  readonly #public: PublicWakes;
  readonly #onWake: () => void;
  /** Requests that wait, by capsule. */
  readonly #waiting = new Counts();

  constructor(publicMax: number, onWake: () => void) {
    this.#public = new PublicWakes(publicMax);
    this.#onWake = onWake;
  }

  /**
   * To be called before a request waits, and the returned function after it. A request begins no resume that is under way, also when
   * those that began it have gone. Throws "quota_exceeded" for a request of anybody.
   */
  begin(id: string, { identity, tokens }: Pick<Grant, "identity" | "tokens">, isResuming: boolean): () => void {
    if (this.#waiting.of(id) === 0 && !isResuming) {
      if (identity === undefined && tokens.length === 0) this.#public.take(id);
      this.#onWake();
    }
    this.#waiting.add(id);
    return () => this.#waiting.subtract(id);
  }
}
