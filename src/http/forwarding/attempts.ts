/** The attempts to pass one request on to a host, as long as none can have been carried out and the host may take the next one. */
import { setTimeout as wait } from "node:timers/promises";
import { CapsuleError } from "../../wire/errors.ts";
import type { Exchange, ForwardingParts, Link, Links } from "../forwarding.ts";
import { ForwardedRequest, type Outcome } from "./forwarded-request.ts";
import type { PendingRequests } from "./pending-requests.ts";

/** How long a host that takes no connection is tried. */
const defaultRetryMs = 5_000;
/** The same while it is absent: its stop takes up to CAPSULE_DRAIN_MS, 10 s, and for the memory of its capsules as long again. */
const defaultAbsentMs = 30_000;
const retryEveryMs = 100;

export interface RetryTimes {
  /** Default 5 s. */
  retryMs?: number;
  /** Default 30 s. */
  absentMs?: number;
}

export interface Target {
  host: string;
  /** Its name, where the client may be told. */
  named: string | undefined;
  team: string | undefined;
  /** undefined: it is tried once. */
  sinceMs: number | undefined;
}

export class Attempts {
  readonly #links: Pick<Links, "isAbsent" | "take">;
  readonly #pending: Pick<PendingRequests, "add">;
  readonly #times: RetryTimes;
  readonly #closing = new AbortController();
  #chunkTurns: ForwardingParts["chunkTurns"] | undefined;
  /** Attempts that have reached another host. */
  #passedOn = 0;

  constructor(links: Pick<Links, "isAbsent" | "take">, pending: Pick<PendingRequests, "add">, times: RetryTimes = {}) {
    this.#links = links;
    this.#pending = pending;
    this.#times = times;
  }

  get passedOn(): number {
    return this.#passedOn;
  }

  attachTo({ chunkTurns, onClose }: Pick<ForwardingParts, "chunkTurns" | "onClose">): void {
    this.#chunkTurns = chunkTurns;
    onClose(() => this.#closing.abort());
  }

  /** Throws "unavailable" when the host cannot be reached. */
  async of(exchange: Exchange, { host, named, team, sinceMs }: Target): Promise<Exclude<Outcome, "unsent">> {
    for (;;) {
      const isAbsent = this.#links.isAbsent(host); // by its word from before this attempt
      using link = release(this.#links.take(host, team));
      const outcome = await this.#once(exchange, host, link);
      if (outcome !== "unsent") return outcome;
      if (exchange.response.destroyed) return "lost";
      if (sinceMs === undefined || this.#isLate(sinceMs, isAbsent)) throw unavailable(named);
      await wait(retryEveryMs, undefined, { signal: this.#closing.signal }).catch(() => {
        throw unavailable(named);
      });
    }
  }

  #isLate(sinceMs: number, isAbsent: boolean): boolean {
    const { retryMs = defaultRetryMs, absentMs = defaultAbsentMs } = this.#times;
    return performance.now() - sinceMs >= (isAbsent ? absentMs : retryMs);
  }

  async #once(exchange: Exchange, host: string, { agent }: Link): Promise<Outcome> {
    if (this.#chunkTurns === undefined) throw new Error("the server is not attached yet");
    const attempt = new ForwardedRequest(exchange, { agent, chunkTurns: this.#chunkTurns });
    const end = this.#pending.add(host, attempt, exchange);
    try {
      const outcome = await attempt.outcome();
      if (outcome !== "unsent") this.#passedOn++;
      return outcome;
    } finally {
      end();
    }
  }
}

function release(link: Link): Link & Disposable {
  return { ...link, [Symbol.dispose]: () => link.release() };
}

export function unavailable(host?: string, cause?: unknown): CapsuleError {
  return new CapsuleError(
    "unavailable",
    host === undefined
      ? "it cannot be told now which host holds the capsule"
      : `host ${host}, which holds the capsule, cannot be reached now`,
    { ...(host === undefined ? {} : { details: { host } }), ...(cause === undefined ? {} : { cause }) },
  );
}
