/**
 * Lost hosts: silent towards PostgreSQL for a time, and towards this host when it asks them itself. Their live rows become `error` and
 * take no quota. No epoch changes: a host that comes back copies what is true over it (docs/adr/0123-tell-of-lost-hosts.md).
 */
import type { Clock } from "../capsules/clock.ts";
import type { Log } from "../log.ts";
import type { Membership } from "./membership.ts";
import type { Postgres } from "./postgres.ts";

export interface LostHostsOptions {
  sql: Postgres;
  membership: Pick<Membership, "me" | "hosts">;
  clock: Pick<Clock, "ticks">;
  log: Log;
  /** The time without a heartbeat after which a host that answers nothing is lost; 0: never. */
  lostSec: number;
}

/** Rows of one statement. */
const rowsMax = 500;
/** A status copy that was on its way when the host was lost may have come since. */
const againMs = 60_000;

interface Told {
  epoch: number;
  heartbeat: number;
  at: number;
}

export class LostHosts {
  readonly #options: LostHostsOptions;
  readonly #told = new Map<string, Told>();
  #answers = async (_host: string): Promise<boolean> => true;

  constructor(options: LostHostsOptions) {
    this.#options = options;
  }

  /** `answers`: whether that host takes a connection from this one now. Before the call none is lost. */
  askBy(answers: (host: string) => Promise<boolean>): void {
    this.#answers = answers;
  }

  /** Call it after each answered heartbeat. Never rejects. */
  async judge(): Promise<void> {
    const { membership, lostSec, sql, log } = this.#options;
    if (lostSec === 0) return;
    for (const host of membership.hosts()) {
      const { name, state, isExpired, ageSec } = host;
      if (name === membership.me.name || state === "gone" || !isExpired || ageSec < lostSec) continue;
      const isKnown = this.#isTold(host);
      if (isKnown === "now" || (await this.#answers(name))) continue;
      try {
        const capsules = await this.#lose(host);
        if (capsules === undefined) continue;
        if (!isKnown) log.error({ host: name, capsules }, "a host is lost: what runs there is shown in status error");
      } catch (error) {
        if (!sql.isAway)
          log.error({ err: error, host: name }, "a lost host could not be told of; it will be tried again");
      }
    }
  }

  /** Undefined: it has moved meanwhile. */
  async #lose({ name, epoch, heartbeat }: { name: string; epoch: number; heartbeat: number }) {
    const { sql, clock } = this.#options;
    let capsules = 0;
    for (let found: number | null = rowsMax; found === rowsMax; capsules += found) {
      found = await sql.call<number | null>("lose_host", [name, epoch, heartbeat, rowsMax], {
        what: "tell of a lost host",
      });
      if (found === null) return undefined;
    }
    this.#told.set(name, { epoch, heartbeat, at: clock.ticks() });
    return capsules;
  }

  #isTold({ name, epoch, heartbeat }: { name: string; epoch: number; heartbeat: number }): false | "before" | "now" {
    const told = this.#told.get(name);
    if (told?.epoch !== epoch || told.heartbeat !== heartbeat) return false;
    return this.#options.clock.ticks() - told.at < againMs ? "now" : "before";
  }
}
