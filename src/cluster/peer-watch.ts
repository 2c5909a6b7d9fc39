/**
 * The other hosts as this one sees them, for its metrics. A cut between two hosts shows in no heartbeat, so each is asked for a connection
 * every 15 s.
 */
import type { Clock } from "../capsules/clock.ts";
import type { Membership } from "./membership.ts";

/** `unreachable`: its heartbeat moves, as far as this host can tell, and it takes no connection from here. */
export type SeenState = "up" | "unreachable" | "expired" | "drained";

export interface PeerWatchOptions {
  membership: Pick<Membership, "me" | "hosts">;
  /** Whether the host takes a connection from this one now. Never rejects. */
  answers: (host: string) => Promise<boolean>;
  clock: Pick<Clock, "after">;
}

const everyMs = 15_000;
const atOnce = 16;

export class PeerWatch {
  readonly #options: PeerWatchOptions;
  #unreachable: ReadonlySet<string> = new Set();
  #cancel = () => {};
  #round: Promise<void> | undefined;
  #isStopped = false;

  constructor(options: PeerWatchOptions) {
    this.#options = options;
  }

  start(): void {
    this.#cancel = this.#options.clock.after(everyMs, () => {
      this.#round = this.#ask().finally(() => {
        if (!this.#isStopped) this.start();
      });
    });
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#cancel();
    await this.#round;
  }

  /** Resolves when no host is being asked. */
  async settled(): Promise<void> {
    await this.#round;
  }

  /** How many of the other hosts are in each state; those that were declared gone in none. */
  counts(): Record<SeenState, number> {
    const counts = { up: 0, unreachable: 0, expired: 0, drained: 0 };
    for (const { name, state, isExpired } of this.#others()) {
      // A machine that was emptied may be switched off.
      if (state === "drained") counts.drained += 1;
      else if (isExpired) counts.expired += 1;
      else counts[this.#unreachable.has(name) ? "unreachable" : "up"] += 1;
    }
    return counts;
  }

  async #ask(): Promise<void> {
    const { answers } = this.#options;
    const asked = this.#others().filter(({ isExpired }) => !isExpired);
    const unreachable = new Set<string>();
    for (let from = 0; from < asked.length && !this.#isStopped; from += atOnce) {
      const some = asked.slice(from, from + atOnce).map(async ({ name }) => {
        if (!(await answers(name))) unreachable.add(name);
      });
      await Promise.all(some);
    }
    this.#unreachable = unreachable;
  }

  #others() {
    const { membership } = this.#options;
    return membership.hosts().filter(({ name, state }) => name !== membership.me.name && state !== "gone");
  }
}
