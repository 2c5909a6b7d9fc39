/**
 * Counts the open connections of each network, and decides which are accepted. A connection that has shown a valid key counts
 * for its address only. The others are bounded, in number and in rate, for larger networks too, since one client may own these.
 */
import { Counts } from "../../counts.ts";
import { largerNetworks, networkOf, networksAround } from "./network.ts";
import { RateLimiter } from "./rate-limiter.ts";

/** A connection, as far as it is counted. */
export interface Counted {
  readonly address: string;
  /** Whether it waits for a request. */
  isIdle(): boolean;
  close(): void;
}

export interface ConnectionBounds {
  /** Open connections of one IPv4 address, or one /64 network of IPv6. */
  max: number;
  /** New ones of it per second without a valid key, in the long run; at once `max`. */
  perSec: number;
  now?: () => number;
}

export class ConnectionCounts {
  readonly #max: number;
  readonly #perAddress = new Counts();
  /** Connections without a valid key by network; the one that is idle for the longest time comes first. */
  readonly #keyless = new Map<string, Set<Counted>>();
  /** By how many times the bounds of one address hold. */
  readonly #rates: Map<number, RateLimiter>;

  constructor({ max, perSec, now }: ConnectionBounds) {
    const { small, large } = largerNetworks;
    this.#max = max;
    this.#rates = new Map([1, small, large].map((times) => [times, new RateLimiter(times * perSec, times * max, now)]));
  }

  /**
   * Counts a new connection; false: it is refused. In a larger network that has too many, one without a valid key makes room, and
   * anywhere when the server is nearly full.
   */
  enter(connection: Counted, { isNearlyFull = false } = {}): boolean {
    const own = networkOf(connection.address);
    if (this.#perAddress.of(own) >= this.#max) return false;
    if (this.#rated(connection).some(({ name, rate }) => rate.take(name) > 0)) return false;
    for (const { name, times } of networksAround(connection.address)) {
      if ((this.#keyless.get(name)?.size ?? 0) >= times * this.#max) this.#closeOne(name);
    }
    if (isNearlyFull) this.makeRoom();
    this.#perAddress.add(own);
    this.#addKeyless(connection);
    return true;
  }

  /** The connection has shown a valid key. Its beginning does not count against the rate. */
  authenticated(connection: Counted): void {
    if (!this.#removeKeyless(connection)) return;
    for (const { name, rate } of this.#rated(connection)) rate.charge(name, -1);
  }

  /** A request without a valid key has ended. */
  used(connection: Counted): void {
    if (this.#removeKeyless(connection)) this.#addKeyless(connection);
  }

  leave(connection: Counted): void {
    this.#perAddress.subtract(networkOf(connection.address));
    this.#removeKeyless(connection);
  }

  /** Closes the connection without a valid key that is idle for the longest time, or the oldest if none is idle. */
  makeRoom(): void {
    this.#closeOne(everywhere);
  }

  /** Networks that are counted. */
  get size(): number {
    return this.#perAddress.size + this.#keyless.size;
  }

  #closeOne(network: string): void {
    const connection = firstIdle(this.#keyless.get(network) ?? new Set());
    if (connection === undefined) return;
    this.#removeKeyless(connection);
    connection.close();
  }

  #addKeyless(connection: Counted): void {
    for (const name of namesOf(connection)) {
      const known = this.#keyless.get(name) ?? new Set();
      this.#keyless.set(name, known.add(connection));
    }
  }

  /** False: it was none of them. */
  #removeKeyless(connection: Counted): boolean {
    if (this.#keyless.get(everywhere)?.has(connection) !== true) return false;
    for (const name of namesOf(connection)) {
      const known = this.#keyless.get(name);
      known?.delete(connection);
      if (known?.size === 0) this.#keyless.delete(name);
    }
    return true;
  }

  /** The larger networks of IPv4 have no rate: their addresses belong to many clients. */
  #rated({ address }: Counted): { name: string; rate: RateLimiter }[] {
    const larger = address.includes(".") ? [] : networksAround(address);
    return [{ name: networkOf(address), times: 1 }, ...larger].map(({ name, times }) => ({
      name,
      rate: this.#rates.get(times) as RateLimiter,
    }));
  }
}

const everywhere = "";

function namesOf({ address }: Counted): string[] {
  return [everywhere, ...networksAround(address).map(({ name }) => name)];
}

/** Or the first, if none is idle: a client may keep all of them busy by not reading its answers. */
function firstIdle(connections: ReadonlySet<Counted>): Counted | undefined {
  let first: Counted | undefined;
  for (const connection of connections) {
    if (connection.isIdle()) return connection;
    first ??= connection;
  }
  return first;
}
