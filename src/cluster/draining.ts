/**
 * This host's part in its own drain, which its operator asks for in PostgreSQL: no VM is started ahead of time, nothing is made or acquired
 * here, and running capsules are moved until the deadline. The host is drained when it holds none.
 */
import type { Clock } from "../capsules/clock.ts";
import type { Log } from "../log.ts";
import type { Membership } from "./membership.ts";
import type { Postgres } from "./postgres.ts";

export interface DrainingOptions {
  sql: Postgres;
  membership: Pick<Membership, "me" | "state">;
  clock: Pick<Clock, "ticks">;
  log: Log;
  /** Whether VMs are started ahead of time. */
  keepReady: (isKept: boolean) => void;
}

export interface Drain {
  /** Another one each time that an operator asks for it. */
  number: number;
  /** The deadline, by this host's monotonic clock, and the end of the third of it in which commands are waited for. */
  untilTicks: number;
  busyUntilTicks: number;
}

/** As `follow_moves` returns it. */
interface Followed {
  number: number;
  ms: number;
  leftMs: number;
}

export class Draining {
  readonly #options: DrainingOptions;
  #state = "up";
  #drain: Drain | undefined;

  constructor(options: DrainingOptions) {
    this.#options = options;
  }

  /** undefined: the host takes capsules, or it is not known yet that it is drained. */
  get drain(): Drain | undefined {
    return this.#drain;
  }

  /** Call it after each answered heartbeat. Never rejects. */
  async follow(): Promise<void> {
    const { sql, membership, log, clock, keepReady } = this.#options;
    const { me, state } = membership;
    const before = this.#state;
    this.#state = state;
    if ((state === "up") !== (before === "up")) keepReady(state === "up");
    if (state !== before) log.info({ host: me.name, state }, "the host's state in the cluster has changed");
    if (state !== "draining" && state !== "drained") {
      this.#drain = undefined;
      return;
    }
    try {
      const now = clock.ticks();
      const found = await sql.call<Followed | null>("follow_moves", [me.name], { what: "follow the drain of a host" });
      this.#drain = found === null ? undefined : drainOf(found, now);
    } catch (error) {
      if (!sql.isAway) log.error({ err: error }, "the drain of this host could not be followed");
    }
  }
}

function drainOf({ number, ms, leftMs }: Followed, now: number): Drain {
  return { number, untilTicks: now + leftMs, busyUntilTicks: now + leftMs - (2 * ms) / 3 };
}
