/**
 * This host's part in its own drain, which its operator asks for in PostgreSQL: no VM is started ahead of time, and nothing is made or
 * acquired here. Capsules that it holds go on; the host is drained when it holds none.
 */
import type { Log } from "../log.ts";
import type { Membership } from "./membership.ts";
import type { Postgres } from "./postgres.ts";

export interface DrainingOptions {
  sql: Postgres;
  membership: Pick<Membership, "me" | "state">;
  log: Log;
  /** Whether VMs are started ahead of time. */
  keepReady: (isKept: boolean) => void;
}

export class Draining {
  readonly #options: DrainingOptions;
  #state = "up";

  constructor(options: DrainingOptions) {
    this.#options = options;
  }

  /** Call it after each answered heartbeat. Never rejects. */
  async follow(): Promise<void> {
    const { sql, membership, log, keepReady } = this.#options;
    const { me, state } = membership;
    const before = this.#state;
    this.#state = state;
    if ((state === "up") !== (before === "up")) keepReady(state === "up");
    if (state !== before) log.info({ host: me.name, state }, "the host's state in the cluster has changed");
    if (state !== "draining" && state !== "drained") return;
    try {
      await sql.call("follow_drain", [me.name], { what: "follow the drain of a host" });
    } catch (error) {
      if (!sql.isAway) log.error({ err: error }, "the drain of this host could not be followed");
    }
  }
}
