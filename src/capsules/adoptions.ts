/**
 * Running capsules whose guest an earlier daemon has left, and this one has not adopted yet because its agent has not answered. Such
 * a capsule has no guest and no run; requests that need its guest wait for it (docs/adr/0034).
 */
import { CapsuleError } from "../wire/errors.ts";
import { type Action, cannot } from "../wire/requirements.ts";
import type { Clock } from "./clock.ts";

/** Longest wait of a request. */
const waitMs = 5_000;

/** So long an adoption is under way before its VM may be ended, as that of any other capsule. */
const protectedMs = 30_000;

interface Adoption {
  beganTicks: number;
  abort: AbortController;
  /** Why its VM is to be ended. */
  endReason?: string;
  over: PromiseWithResolvers<void>;
}

export class Adoptions {
  readonly #clock: Clock;
  readonly #underWay = new Map<string, Adoption>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get count(): number {
    return this.#underWay.size;
  }

  has(id: string): boolean {
    return this.#underWay.has(id);
  }

  /** The signal fires when the adoption is to be given up, and the VM left alone. */
  begin(id: string): AbortSignal {
    const adoption = {
      beganTicks: this.#clock.ticks(),
      abort: new AbortController(),
      over: Promise.withResolvers<void>(),
    };
    this.#underWay.set(id, adoption);
    return adoption.abort.signal;
  }

  /** The guest was adopted, or there is none. */
  end(id: string): void {
    this.#underWay.get(id)?.over.resolve();
    this.#underWay.delete(id);
  }

  /** Gives up one that has been under way for 30 s, and lets its VM be ended. False: there is none. */
  endVm(id: string, reason: string): boolean {
    const adoption = this.#underWay.get(id);
    if (adoption === undefined || this.#clock.ticks() - adoption.beganTicks < protectedMs) return false;
    adoption.endReason ??= reason;
    adoption.abort.abort(new Error(reason));
    return true;
  }

  /** Why its VM is to be ended; undefined: it is not. */
  endReason(id: string): string | undefined {
    return this.#underWay.get(id)?.endReason;
  }

  abort(id: string, reason: Error): void {
    this.#underWay.get(id)?.abort.abort(reason);
  }

  /** Resolves when the capsule's adoption, if any, has ended. Throws "unavailable" when that takes more than 5 s. */
  async ended(id: string, action: Action): Promise<void> {
    const adoption = this.#underWay.get(id);
    if (adoption === undefined) return;
    const late = Promise.withResolvers<void>();
    const cancel = this.#clock.after(waitMs, late.resolve);
    await Promise.race([adoption.over.promise, late.promise]);
    cancel();
    if (!this.has(id)) return;
    const message = `${cannot(action, id)} yet: the server was started anew, and the capsule's agent has not answered`;
    throw new CapsuleError("unavailable", message);
  }

  /** The server stops: what is given up here is left to its next start, and counts as under way until the end. */
  close(): void {
    for (const { abort } of this.#underWay.values()) abort.abort(new Error("the server is stopping"));
  }
}
