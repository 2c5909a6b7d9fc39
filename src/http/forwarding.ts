/**
 * The port through which requests reach the other hosts of a cluster. The HTTP server of a service on one host is given none, and loads
 * nothing behind it (docs/adr/0115-pass-a-request-on-whole-to-its-holder.md).
 */
import type { Agent, IncomingMessage, Server, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { Identity } from "../teams/teams.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { ChunkTurns } from "./access/chunk-turns.ts";
import type { Need, ReleasedCapsule } from "./released.ts";

/** The client of a request, as the host that it came to has found it. */
export interface Caller {
  /** undefined: the holder checks the request's own credential. */
  identity: Identity | undefined;
  /** The address that limits count and that audit entries name. */
  address: string;
  /** The address of the client's connection, which a proxy in front may have made. */
  remote: string;
  requestId: string;
  /** Where the client has sent the request, for URLs in its answer; undefined: only the request's own head tells. */
  origin?: { protocol: string; host: string } | undefined;
}

/** A request that another host has passed on. */
export interface PeerCaller extends Caller {
  /** The other host's name, by the key of its connection. */
  host: string;
}

/** A request that may be passed on, and its answer. */
export interface Exchange {
  request: IncomingMessage;
  response: ServerResponse;
  /** The connection of a request that asks for an upgrade, with the bytes that came behind its head. */
  upgrade: { socket: Socket; first: Buffer } | undefined;
  /** The upgrade is to a WebSocket of the API, which ends with a close frame. */
  isWebSocket?: boolean;
  /** The body, where it has been read already. */
  body?: Buffer;
  caller: Caller;
  /** Whose turns the bytes take. */
  team: string;
  /** Called before a lookup for a client without a key. Throws "quota_exceeded". */
  admitLookup: () => void;
  /** The need of the request, where no host holds its capsule. Throws its refusal. Default: `held`. */
  needOf?: (capsule: ReleasedCapsule) => Need | Promise<Need>;
  /** It shows or destroys the capsule, for which a row is enough, and waits no longer than that takes. */
  isOfRow?: boolean;
  /** It shows the capsule: the row is enough while a host brings the capsule back, too. */
  isShow?: boolean;
  /** A host holds that capsule by now. */
  onHeld?: () => void;
  /** Called before the first byte of the answer: from then on nobody else may write to the response. */
  onAnswer: () => void;
}

/**
 * Resolves with true when the answer, or the upgraded connection, is over; with false when no other host holds the capsule. Rejects
 * with "unavailable" while the response is untouched, and the request was certainly not carried out.
 */
export type PassOn = (exchange: Exchange) => Promise<boolean>;

export interface ForwardingParts {
  server: Server;
  chunkTurns: ChunkTurns;
  /** Time without progress after which a peer that does not read its answer is disconnected. */
  stallMs: number;
  /** Time for requests in progress to end when the server closes. */
  drainMs: number;
  /** Registers what is done when the server begins to close. */
  onClose: (close: () => void) => void;
  /** Registers what the end of the server waits for, beside its own requests. */
  untilClosed: (ended: () => Promise<void>) => void;
}

/** A valid ticket of a WebSocket, made by any host of the cluster. */
export interface OpenedTicket {
  keyId: string;
  nonce: string;
  expiresAt: number;
}

export interface TicketsOfAllHosts {
  issue(identity: Identity, scope: string): { token: string; expiresAt: number };
  open(token: string, scope: string): OpenedTicket | undefined;
  use(ticket: OpenedTicket, scope: string): boolean;
}

/** The needs of a create, by which its host is chosen. */
export interface NewCapsule {
  teamId: string;
  template: string;
  vcpus: number;
  memoryMb: number;
}

/** A host's name; null is this one. */
export type HostForCreate = string | null;

export interface Placements {
  /** In the order in which they are to be asked, at least one. Rejects with "unavailable". */
  hostsFor(wanted: NewCapsule): Promise<HostForCreate[]>;
  /**
   * Hosts that are to be asked as well when all of these have refused, for each has what they may have lacked. None, if there are no such.
   * Rejects with "unavailable".
   */
  othersFor(wanted: NewCapsule, asked: readonly HostForCreate[]): Promise<HostForCreate[]>;
  /** A create goes there now. Call the returned function when no capsule is made by it. */
  sent(host: HostForCreate): () => void;
}

/** A create that this host has refused before anything of it was done, and that another one may grant. */
export class RefusedHere extends CapsuleError {
  constructor({ code, message, details, retryAfterSec, cause }: CapsuleError) {
    super(code, message, { cause, ...(details === undefined ? {} : { details }), ...retryOf(retryAfterSec) });
  }
}

function retryOf(retryAfterSec: number | null | undefined): { retryAfterSec?: number | null } {
  return retryAfterSec === undefined ? {} : { retryAfterSec };
}

/** A valid sign-in link, made by any host of the cluster. It may be used already. */
export interface OpenedLink {
  /** Id of the key that made it. */
  makerId: string;
  /** Id of the key that its first use makes. */
  sessionKeyId: string;
}

export interface LinksOfAllHosts {
  issue(identity: Identity): { token: string; expiresAt: number };
  open(token: string): OpenedLink | undefined;
}

export interface Forwarding {
  /** undefined: another host has chosen this one for the create. */
  placementsFor(request: IncomingMessage): Placements | undefined;
  /**
   * Passes a create on. False: that host cannot make the capsule, and has done nothing. `isLast`: no other one is asked after it, so it
   * is tried for longer. Rejects as `PassOn`.
   */
  create(exchange: Exchange, host: string, isLast: boolean): Promise<boolean>;
  /** Tells the host that has chosen this one for a create that it was refused. undefined: the request is a client's own. */
  declined(request: IncomingMessage): PassOn | undefined;
  /** undefined: a ticket is good at the host that made it. */
  readonly tickets?: TicketsOfAllHosts | undefined;
  /** undefined: a sign-in link is good at the host that made it. */
  readonly signInLinks?: LinksOfAllHosts | undefined;
  /** Call when all listeners of the server are added. */
  attachTo(parts: ForwardingParts): void;
  /** undefined: the request is a client's own. */
  callerOf(request: IncomingMessage): PeerCaller | undefined;
  /**
   * undefined, in the same turn and without a statement: this host holds the capsule. `team` undefined: `key` is an id, and the capsule
   * may be any team's. A request of another host is answered with 421 by what this returns.
   */
  elsewhere(request: IncomingMessage, team: string | undefined, key: string): PassOn | undefined;
}

/** Where a capsule is; as `Holder` of the cluster. */
export type Place =
  | { at: "here" }
  | { at: "host"; host: string }
  | { at: "released"; capsule: ReleasedCapsule }
  | { at: "coming" }
  | { at: "nowhere" }
  | { at: "unavailable"; host?: string };

export interface Places {
  /** Whether this host holds the capsule; no statement. */
  isHere(team: string | undefined, key: string): boolean;
  /** Whether `find` needs no statement. */
  knows(team: string | undefined, key: string): boolean;
  find(team: string | undefined, key: string): Promise<Place>;
  forget(team: string | undefined, key: string): void;
  /** The row of a capsule whose holder cannot be reached; "elsewhere": it has another holder. Rejects with "unavailable". */
  left?(team: string, key: string, host: string): Promise<ReleasedCapsule | "elsewhere" | "nowhere">;
  /** Resolves when a capsule that this host brings back is here, or is not. undefined: it brings back none of that name. */
  coming?(team: string | undefined, key: string): Promise<void> | undefined;
  /** The row of such a capsule, as lists show it. undefined: another host holds it, or it is gone. Rejects with "unavailable". */
  comingRow?(team: string, key: string): Promise<ReleasedCapsule | undefined>;
  /** Resolves when a capsule that is leaving this host has left it, and after 2 s at the latest. undefined: none of that name is. */
  leaving?(team: string | undefined, key: string): Promise<unknown> | undefined;
}

export interface Link {
  /** Makes connections to the host; its errors before one stands are `NotConnected`. */
  agent: Agent;
  release(): void;
}

/** The connections to the other hosts. */
export interface Links {
  /**
   * A place for one request; `team` undefined: of a client without a key. Throws CapsuleError("unavailable"), which names the host to
   * clients with a key: it is unknown, has expired, or all places are taken.
   */
  take(host: string, team: string | undefined): Link;
  isUp(host: string): boolean;
  /** Whether it is up, and says that its port is closed: it is being stopped or started. */
  isAbsent(host: string): boolean;
  /** The other hosts that can be asked. */
  hosts(): string[];
  /** Whether the host answers a handshake now, although it counts as expired. */
  probe(host: string): Promise<boolean>;
  close(): void;
}

/** No byte of the request was sent. */
export class NotConnected extends Error {}
