/**
 * Passes requests on to the hosts that hold their capsules: one hop, and never a second one. A request that cannot have been carried out
 * is tried again; one that may have been is given up, as a server's death gives up its own.
 */
import type { IncomingMessage } from "node:http";
import { CapsuleError } from "../../wire/errors.ts";
import type {
  Exchange,
  Forwarding,
  ForwardingParts,
  Links,
  LinksOfAllHosts,
  PassOn,
  PeerCaller,
  Place,
  Placements,
  Places,
  TicketsOfAllHosts,
} from "../forwarding.ts";
import type { ReleasedCapsule, ReleasedCapsules } from "../released.ts";
import type { AcquireTimes } from "./acquire-questions.ts";
import { Arrivals, type ArrivalTimes } from "./arrivals.ts";
import { Attempts, type RetryTimes, unavailable } from "./attempts.ts";
import { HolderQuestions } from "./holder-questions.ts";
import { PeerRequests } from "./peer-requests.ts";
import { PendingRequests } from "./pending-requests.ts";
import { ReleasedRequests, type Taken } from "./released-requests.ts";

/** Lookups of one request: what holds its capsule may change between a lookup and its answer. */
const looksMax = 4;
/** A lookup may be a statement, and its client may have no key. */
const keylessLookupsMax = 64;

type SettledPlace = Exclude<Place, { at: "released" | "coming" }>;

export interface ForwarderOptions {
  places: Places;
  links: Links;
  /** undefined: each host makes the capsules that it is asked for. */
  placements?: Placements;
  tickets?: TicketsOfAllHosts;
  signInLinks?: LinksOfAllHosts;
  /** undefined: each capsule has a holder. */
  released?: ReleasedCapsules | undefined;
  /** The server of this host begins to close. Its end waits for the promise. */
  onStopping?: () => Promise<void>;
  times?: AcquireTimes & ArrivalTimes & RetryTimes;
}

export class Forwarder implements Forwarding {
  /** The requests that other hosts pass on to this one. */
  readonly peers: PeerRequests;
  /** Asks them for a capsule. */
  readonly questions: HolderQuestions;
  readonly tickets: TicketsOfAllHosts | undefined;
  readonly signInLinks: LinksOfAllHosts | undefined;
  readonly #places: Places;
  /** The requests that wait for a capsule which comes here. */
  readonly arrivals: Arrivals;
  readonly #links: Links;
  readonly #placements: Placements | undefined;
  readonly #pending: PendingRequests;
  readonly #attempts: Attempts;
  readonly #released: ReleasedRequests | undefined;
  readonly #onStopping: () => Promise<void>;
  #keylessLookups = 0;
  /** Requests by how their passing on has ended; `given_up`: another host may have carried it out. */
  readonly counts = { answered: 0, given_up: 0, unavailable: 0 };

  constructor({ places, links, placements, tickets, signInLinks, released, onStopping, times }: ForwarderOptions) {
    this.tickets = tickets;
    this.signInLinks = signInLinks;
    this.#placements = placements;
    this.#places = places;
    this.peers = new PeerRequests(places, (host) => links.probe(host), released);
    this.arrivals = new Arrivals(places, times);
    this.questions = new HolderQuestions(links);
    this.#links = links;
    this.#onStopping = onStopping ?? (async () => {});
    const pending = new PendingRequests(links);
    this.#pending = pending;
    this.#attempts = new Attempts(links, pending, times);
    this.#released = released === undefined ? undefined : new ReleasedRequests(released, { links, pending }, times);
  }

  get passedOn(): number {
    return this.#attempts.passedOn;
  }

  /** Has a host acquire a capsule that no host holds, and resume it. Rejects with the refusal of the last one that was asked. */
  async move(capsule: ReleasedCapsule): Promise<Taken> {
    if (this.#released === undefined) throw unavailable();
    return await this.#released.place(capsule, "move");
  }

  attachTo(parts: ForwardingParts): void {
    this.peers.attachTo(parts);
    this.#attempts.attachTo(parts);
    let told: Promise<void> | undefined;
    parts.onClose(() => {
      told = this.#onStopping();
      this.#pending.closeUpgraded();
    });
    parts.untilClosed(async () => await told);
    parts.server.once("close", () => {
      this.#pending.close();
      this.#links.close();
    });
  }

  callerOf(request: IncomingMessage): PeerCaller | undefined {
    return this.peers.callerOf(request);
  }

  elsewhere(request: IncomingMessage, team: string | undefined, key: string): PassOn | undefined {
    const caller = this.callerOf(request);
    if (this.#places.isHere(team, key)) {
      if (caller !== undefined) this.peers.accept(request);
      return undefined;
    }
    if (caller !== undefined) return this.#whenHere(request, caller, { team, key });
    return (exchange) => this.#counted(this.#passOn(exchange, team, key));
  }

  /** The other host may have heard of a capsule before it is whole here, and not yet that it is leaving. */
  #whenHere(
    request: IncomingMessage,
    { requestId }: PeerCaller,
    { team, key }: { team: string | undefined; key: string },
  ): PassOn {
    return async (exchange) => {
      const arrival = await this.arrivals.of(team, key, exchange).catch((refusal: unknown) => {
        this.peers.accept(request); // it is answered here
        throw refusal;
      });
      if (arrival === "row") return false;
      await this.#places.leaving?.(team, key); // the other host then finds by its row that it has left
      if (!this.#places.isHere(team, key)) return await this.peers.misdirected(requestId)(exchange);
      this.peers.accept(request);
      return false;
    };
  }

  placementsFor(request: IncomingMessage): Placements | undefined {
    return this.callerOf(request) === undefined ? this.#placements : undefined;
  }

  create(exchange: Exchange, host: string, isLast: boolean): Promise<boolean> {
    return this.#counted(this.#create(exchange, host, isLast));
  }

  async #create(exchange: Exchange, host: string, isLast: boolean): Promise<boolean> {
    const { team } = exchange;
    const sinceMs = isLast ? performance.now() : undefined;
    const asked = this.#attempts.of(exchange, { host, named: host, team, sinceMs });
    const outcome = await asked.catch((error: unknown) => {
      const message = `cannot create a capsule: host ${host} cannot be reached now`;
      throw new CapsuleError("unavailable", message, { cause: error, details: { host } });
    });
    return outcome === "misdirected" ? false : this.#end(outcome, exchange, host);
  }

  declined(request: IncomingMessage): PassOn | undefined {
    const caller = this.callerOf(request);
    return caller === undefined ? undefined : this.peers.misdirected(caller.requestId);
  }

  async #passOn(exchange: Exchange, team: string | undefined, key: string): Promise<boolean> {
    const sinceMs = performance.now();
    for (let misdirected = 0, looks = 1; ; looks++) {
      const found = await this.#find(team, key, exchange);
      const place = await this.#settled(found, exchange, { team, key });
      if (place === undefined) {
        if (looks >= looksMax) throw unavailable();
        continue;
      }
      if (place.at === "here" || place.at === "nowhere") return false;
      const named = team === undefined ? undefined : place.host; // hosts have no names for clients without a key
      const { host } = place;
      // The database has not heard of an expired host for a while; it may be the database's way to it that is cut.
      const isReached = host !== undefined && (place.at === "host" || (await this.#links.probe(host)));
      if (!isReached) {
        if ((await this.#ofRow(exchange, named, { team, key })) === "answered") return false;
        this.#places.forget(team, key);
        if (looks >= looksMax) throw unavailable(named);
        continue;
      }
      const outcome = await this.#attempts.of(exchange, { host, named, team, sinceMs }).catch((error: unknown) => {
        this.#places.forget(team, key); // it may have been released there before
        throw error;
      });
      if (outcome !== "misdirected") return this.#end(outcome, exchange, named);
      this.#places.forget(team, key);
      if (++misdirected > 1) throw unavailable(named);
    }
  }

  /** Whether the row of a capsule whose holder cannot be reached is enough, or gone; "again": another host holds it. Else rejects. */
  async #ofRow(
    { needOf }: Exchange,
    host: string | undefined,
    { team, key }: { team: string | undefined; key: string },
  ): Promise<"answered" | "again"> {
    if (host === undefined || team === undefined || this.#places.left === undefined) throw unavailable(host);
    const left = await this.#places.left(team, key, host).catch((cause: unknown) => {
      throw unavailable(host, cause);
    });
    if (left === "elsewhere") return "again";
    if (left === "nowhere" || (await needOf?.(left)) === "row") return "answered";
    throw unavailable(host);
  }

  /** undefined: it is to be looked for again. */
  async #settled(
    found: Place,
    exchange: Exchange,
    { team, key }: { team: string | undefined; key: string },
  ): Promise<SettledPlace | undefined> {
    if (found.at === "coming")
      return (await this.arrivals.of(team, key, exchange)) === "row" ? { at: "here" } : undefined;
    return found.at === "released" ? await this.#taken(found.capsule, exchange) : found;
  }

  /** Where a capsule is that no host has held. undefined: it is to be looked for again. Rejects with its refusal. */
  async #taken(capsule: ReleasedCapsule, exchange: Exchange): Promise<SettledPlace | undefined> {
    const need = (await exchange.needOf?.(capsule)) ?? "held";
    if (need === "row") return { at: "here" };
    if (this.#released === undefined) throw unavailable();
    const taken = await this.#released.take(capsule, need, exchange);
    exchange.onHeld?.();
    if (taken === "elsewhere") return undefined;
    return taken.host === null ? { at: "here" } : { at: "host", host: taken.host };
  }

  #end(outcome: "answered" | "lost", exchange: Exchange, host: string | undefined): true {
    if (outcome === "lost") giveUp(exchange, host);
    this.counts[outcome === "lost" ? "given_up" : "answered"]++;
    return true;
  }

  async #counted(passing: Promise<boolean>): Promise<boolean> {
    try {
      return await passing;
    } catch (error) {
      if (error instanceof CapsuleError && error.code === "unavailable") this.counts.unavailable++;
      throw error;
    }
  }

  async #find(team: string | undefined, key: string, { admitLookup }: Exchange) {
    if (team !== undefined) return await this.#places.find(team, key);
    if (!this.#places.knows(undefined, key)) admitLookup();
    if (this.#keylessLookups >= keylessLookupsMax) throw unavailable();
    this.#keylessLookups++;
    try {
      return await this.#places.find(undefined, key);
    } finally {
      this.#keylessLookups--;
    }
  }
}

/** A request that changes nothing may be repeated; any other one ends as that of a server that has died. */
function giveUp({ request, response }: Exchange, host: string | undefined): void {
  const isSafe = request.method === "GET" || request.method === "HEAD";
  if (isSafe && !response.destroyed && !response.headersSent) throw unavailable(host);
  response.destroy();
}
