/** Requests at ports' URLs that wait for the resume of a paused capsule: all of one capsule for the same. */
import { Counts } from "../../counts.ts";
import type { Services } from "../services.ts";
import type { Grant } from "./port-access.ts";
import type { PortVisit } from "./port-visit.ts";
import { PublicWakes } from "./public-wakes.ts";

export class Wakes {
  readonly #capsules: Pick<Services["capsules"], "admit">;
  readonly #public: PublicWakes;
  readonly #onWake: () => void;
  /** Requests that wait, by capsule. */
  readonly #waiting = new Counts();

  constructor(capsules: Pick<Services["capsules"], "admit">, publicMax: number, onWake: () => void) {
    this.#capsules = capsules;
    this.#public = new PublicWakes(publicMax);
    this.#onWake = onWake;
  }

  /** Resolves at once when the capsule runs. Rejects with "invalid_state", "quota_exceeded", the resume's refusal or the visit's end. */
  async resumed(
    { address: { id }, signal }: Pick<PortVisit, "address" | "signal">,
    { teamId, identity, tokens }: Pick<Grant, "teamId" | "identity" | "tokens">,
  ): Promise<void> {
    const untilResumed = this.#capsules.admit(teamId, id, "ports");
    if (untilResumed === undefined) return;
    if (this.#waiting.of(id) === 0) {
      if (identity === undefined && tokens.length === 0) this.#public.take(id);
      this.#onWake();
    }
    this.#waiting.add(id);
    try {
      await untilResumed(signal);
    } finally {
      this.#waiting.subtract(id);
    }
  }
}
