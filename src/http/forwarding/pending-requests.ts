/**
 * The requests that other hosts have not answered whole yet. A command may run for hours without a byte, so no time ends them; the end of
 * their host does: one that counts as expired and takes no new connection either.
 */
import type { Exchange, Links } from "../forwarding.ts";

const checkMs = 1_000;

interface Attempt {
  giveUp(): void;
  /** Ends an upgraded connection; its client is told, if it is a WebSocket's. */
  stop(): void;
}

export class PendingRequests {
  readonly #links: Pick<Links, "isUp" | "probe">;
  readonly #byHost = new Map<string, Map<Attempt, Exchange>>();
  /** Hosts whose probe is under way. */
  readonly #probed = new Set<string>();
  #timer: NodeJS.Timeout | undefined;

  constructor(links: Pick<Links, "isUp" | "probe">) {
    this.#links = links;
  }

  /** The returned function is called when the attempt is over. */
  add(host: string, attempt: Attempt, exchange: Exchange): () => void {
    const ofHost = this.#byHost.get(host) ?? new Map<Attempt, Exchange>();
    this.#byHost.set(host, ofHost.set(attempt, exchange));
    this.#timer ??= setInterval(() => this.check(), checkMs).unref();
    return () => {
      ofHost.delete(attempt);
      if (ofHost.size === 0 && this.#byHost.get(host) === ofHost) this.#byHost.delete(host);
      if (this.#byHost.size === 0) this.close();
    };
  }

  check(): void {
    for (const host of this.#byHost.keys()) if (!this.#links.isUp(host)) void this.#probe(host);
  }

  /** Upgraded connections, which the end of the server would leave open. */
  closeUpgraded(): void {
    for (const [attempt, { upgrade }] of [...this.#byHost.values()].flatMap((each) => [...each]))
      if (upgrade !== undefined) attempt.stop();
  }

  close(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  async #probe(host: string): Promise<void> {
    if (this.#probed.has(host)) return;
    this.#probed.add(host);
    const concerned = [...(this.#byHost.get(host)?.keys() ?? [])];
    const answers = await this.#links.probe(host);
    this.#probed.delete(host);
    if (answers || this.#links.isUp(host)) return;
    for (const attempt of concerned) attempt.giveUp();
  }
}
