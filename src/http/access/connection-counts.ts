/**
 * Counts the open connections of each network, and decides which are accepted. A connection that has shown a valid key counts
 * for its address and its team. The others are bounded, in number and in rate, for larger networks too, since one client may own
 * these. On a nearly full server, connections without a valid key keep a number of places: a client of any team begins as one.
 */
import { Counts } from "../../counts.ts";
import { largerNetworks, networkOf, networksAround, ratedNetworks } from "./network.ts";
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
  /** Connections without a valid key of all clients that make no room for others. */
  keylessMin: number;
  now?: () => number;
}

export class ConnectionCounts {
  readonly #max: number;
  readonly #perAddress = new Counts();
  /** Connections without a valid key by network; the one that is idle for the longest time comes first. */
  readonly #keyless = new Groups();
  /** Connections with a valid key by team, in the same order. */
  readonly #ofTeams = new Groups();
  readonly #teams = new Map<Counted, string>();
  readonly #keylessMin: number;
  /** By how many times the bounds of one address hold. */
  readonly #rates: Map<number, RateLimiter>;

  constructor({ max, perSec, keylessMin, now }: ConnectionBounds) {
    const { small, large } = largerNetworks;
    this.#max = max;
    this.#keylessMin = keylessMin;
    this.#rates = new Map([1, small, large].map((times) => [times, new RateLimiter(times * perSec, times * max, now)]));
  }

  /**
   * Counts a new connection; false: it is refused. In a larger network that has too many, one without a valid key makes room; when
   * the server is nearly full, see `makeRoom`.
   */
  enter(connection: Counted, { isNearlyFull = false } = {}): boolean {
    const own = networkOf(connection.address);
    if (this.#perAddress.of(own) >= this.#max) return false;
    if (this.#rated(connection).some(({ name, rate }) => rate.take(name) > 0)) return false;
    for (const { name, times } of networksAround(connection.address)) {
      if (this.#keyless.of(name).size >= times * this.#max) this.#closeOne(this.#keyless.of(name));
    }
    if (isNearlyFull) this.makeRoom();
    this.#perAddress.add(own);
    this.#keyless.add(namesOf(connection), connection);
    return true;
  }

  /** The connection has shown a valid key of the team. Its beginning does not count against the rate. */
  authenticated(connection: Counted, team: string): void {
    if (!this.#keyless.remove(namesOf(connection), connection)) return;
    this.#teams.set(connection, team);
    this.#ofTeams.add([team], connection);
    for (const { name, rate } of this.#rated(connection)) rate.charge(name, -1);
  }

  /** A request has ended. */
  used(connection: Counted): void {
    const team = this.#teams.get(connection);
    const [groups, names] = team === undefined ? [this.#keyless, namesOf(connection)] : [this.#ofTeams, [team]];
    if (groups.remove(names, connection)) groups.add(names, connection);
  }

  leave(connection: Counted): void {
    this.#perAddress.subtract(networkOf(connection.address));
    this.#forget(connection);
  }

  /**
   * Closes the connection that is idle for the longest time, or the oldest if none is idle: of those without a valid key while these
   * have more than their places, or else of the team that has the most.
   */
  makeRoom(): void {
    const keyless = this.#keyless.of(everywhere);
    const known = keyless.size > this.#keylessMin ? undefined : this.#ofTeams.largest();
    this.#closeOne(known ?? keyless);
  }

  /** Networks and teams that are counted. */
  get size(): number {
    return this.#perAddress.size + this.#keyless.size + this.#ofTeams.size + this.#teams.size;
  }

  #closeOne(connections: ReadonlySet<Counted>): void {
    const connection = firstIdle(connections);
    if (connection === undefined) return;
    this.#forget(connection);
    connection.close();
  }

  #forget(connection: Counted): void {
    const team = this.#teams.get(connection);
    this.#teams.delete(connection);
    if (team === undefined) this.#keyless.remove(namesOf(connection), connection);
    else this.#ofTeams.remove([team], connection);
  }

  #rated({ address }: Counted): { name: string; rate: RateLimiter }[] {
    return ratedNetworks(address).map(({ name, times }) => ({ name, rate: this.#rates.get(times) as RateLimiter }));
  }
}

/** Connections by name, in the order in which they were added. A name without connections takes no memory. */
class Groups {
  readonly #groups = new Map<string, Set<Counted>>();

  of(name: string): ReadonlySet<Counted> {
    return this.#groups.get(name) ?? new Set();
  }

  add(names: readonly string[], connection: Counted): void {
    for (const name of names) this.#groups.set(name, (this.#groups.get(name) ?? new Set()).add(connection));
  }

  /** False: it was none of them. */
  remove(names: readonly string[], connection: Counted): boolean {
    let isFound = false;
    for (const name of names) {
      const group = this.#groups.get(name);
      isFound = group?.delete(connection) === true || isFound;
      if (group?.size === 0) this.#groups.delete(name);
    }
    return isFound;
  }

  largest(): ReadonlySet<Counted> | undefined {
    let largest: ReadonlySet<Counted> | undefined;
    for (const group of this.#groups.values()) if (group.size > (largest?.size ?? 0)) largest = group;
    return largest;
  }

  get size(): number {
    return this.#groups.size;
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
