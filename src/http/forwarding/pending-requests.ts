/**
 * The requests that other hosts have not answered whole yet. A command may run for hours without a byte, so no time ends them; the end of
 * their host does: one that counts as expired and takes no new connection either, or one that is up and has taken none for 12 s, since
 * the network loses what is sent one way or the other (docs/adr/0129). A host that stops takes none, and answers within its drain time.
 */
import type { Exchange, Links } from "../forwarding.ts";

const checkMs = 1_000;
/** Age of a request from which on its host is asked for a connection, and the time between two of these that are made. */
const probeEveryMs = 5_000;
/** As long as a host may be silent towards the database. */
const unreachedMs = 12_000;

interface Attempt {
  giveUp(): void;
  /** Ends an upgraded connection; its client is told, if it is a WebSocket's. */
  stop?(): void;
}

interface Pending {
  /** undefined: a question of this host's own. */
  exchange: Pick<Exchange, "upgrade"> | undefined;
  sinceMs: number;
}

export class PendingRequests {
  readonly #links: Pick<Links, "isAbsent" | "isUp" | "probe">;
  readonly #now: () => number;
  readonly #byHost = new Map<string, Map<Attempt, Pending>>();
  /** Hosts whose probe is under way. */
  readonly #probed = new Set<string>();
  /** When the last connection was made to a host. */
  readonly #reachedMs = new Map<string, number>();
  /** Since when a host that is up takes none. */
  readonly #unreachedMs = new Map<string, number>();
  #timer: NodeJS.Timeout | undefined;

  /** `now`: monotonic milliseconds. */
  constructor(links: Pick<Links, "isAbsent" | "isUp" | "probe">, now = () => performance.now()) {
    this.#links = links;
    this.#now = now;
  }

  /** The returned function is called when the attempt is over. */
  add(host: string, attempt: Attempt, exchange?: Pending["exchange"]): () => void {
    const ofHost = this.#byHost.get(host) ?? new Map<Attempt, Pending>();
    this.#byHost.set(host, ofHost.set(attempt, { exchange, sinceMs: this.#now() }));
    this.#timer ??= setInterval(() => this.check(), checkMs).unref();
    return () => {
      ofHost.delete(attempt);
      if (ofHost.size === 0 && this.#byHost.get(host) === ofHost) this.#forget(host);
      if (this.#byHost.size === 0) this.close();
    };
  }

  check(): void {
    for (const [host, ofHost] of this.#byHost) {
      if (!this.#links.isUp(host)) void this.#probe(host);
      else if (this.#unreachedMs.has(host) || this.#isDue(host, ofHost)) void this.#probe(host);
    }
  }

  /** Upgraded connections, which the end of the server would leave open. */
  closeUpgraded(): void {
    for (const [attempt, { exchange }] of [...this.#byHost.values()].flatMap((each) => [...each]))
      if (exchange?.upgrade !== undefined) attempt.stop?.();
  }

  close(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  /** The oldest request stands first. */
  #isDue(host: string, ofHost: Map<Attempt, Pending>): boolean {
    const [oldest] = ofHost.values();
    const sinceMs = Math.max(oldest?.sinceMs ?? this.#now(), this.#reachedMs.get(host) ?? Number.NEGATIVE_INFINITY);
    return this.#now() - sinceMs >= probeEveryMs;
  }

  async #probe(host: string): Promise<void> {
    if (this.#probed.has(host)) return;
    this.#probed.add(host);
    const beganMs = this.#now();
    const concerned = [...(this.#byHost.get(host) ?? [])];
    const answers = await this.#links.probe(host);
    this.#probed.delete(host);
    if (!this.#byHost.has(host)) return;
    if (answers) {
      this.#reachedMs.set(host, this.#now());
      this.#unreachedMs.delete(host);
      return;
    }
    const unreachedSinceMs = this.#unreachedMs.get(host) ?? beganMs;
    this.#unreachedMs.set(host, unreachedSinceMs);
    const isUp = this.#links.isUp(host);
    if (isUp && (this.#links.isAbsent(host) || this.#now() - unreachedSinceMs < unreachedMs)) return;
    for (const [attempt, { sinceMs }] of concerned) if (!isUp || sinceMs <= unreachedSinceMs) attempt.giveUp();
  }

  #forget(host: string): void {
    this.#byHost.delete(host);
    this.#reachedMs.delete(host);
    this.#unreachedMs.delete(host);
  }
}
