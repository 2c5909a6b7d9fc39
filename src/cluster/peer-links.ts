/**
 * The connections to the other hosts, kept open between requests for a few seconds. No more are made to a host than it takes from this one;
 * one team gets three quarters of them at most, and all clients without a key, whose credentials the holder checks, a half.
 */
import { Agent, type ClientRequest } from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { type ConnectionOptions, connect, type TLSSocket } from "node:tls";
import { Counts } from "../counts.ts";
import { type Link, type Links, NotConnected } from "../http/forwarding.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Holders } from "./holders.ts";
import { peerConnectionsMax, peerHandshakeMs, peerKey, peerTls } from "./peer-keys.ts";

const teamMax = (peerConnectionsMax * 3) / 4;
const keylessMax = peerConnectionsMax / 2;
/** No team's id. */
const keyless = "";
/** Much shorter than the server's, so that a request meets no connection that is closed already. */
const idleMs = 5_000;
const idleMax = 32;
/** From then on the kernel asks whether a silent host is there. */
const keepAliveMs = 10_000;

export interface PeerLinksOptions {
  holders: Pick<Holders, "isAbsent" | "peer" | "peers">;
  hostName: string;
  secret: Uint8Array;
}

type Address = NonNullable<ReturnType<Holders["peer"]>>;

interface Peer {
  address: Address;
  agent: PeerAgent;
  /** Requests under way, by team; those of clients without a key together. */
  inUse: Counts;
}

export class PeerLinks implements Links {
  readonly #options: PeerLinksOptions;
  readonly #peers = new Map<string, Peer>();
  readonly #probes = new Map<string, Promise<boolean>>();
  /** Hosts whose last probe was answered. */
  readonly #proven = new Map<string, Address>();

  constructor(options: PeerLinksOptions) {
    this.#options = options;
  }

  take(host: string, team: string | undefined): Link {
    const named = team === undefined ? undefined : host;
    const peer = this.#peer(host, named);
    const [owner, most] = team === undefined ? [keyless, keylessMax] : [team, teamMax];
    if (peer.inUse.sum >= peerConnectionsMax || peer.inUse.of(owner) >= most)
      throw unavailable(named, "has as many requests from this one under way as it takes", 1);
    peer.inUse.add(owner);
    return { agent: peer.agent, release: () => peer.inUse.subtract(owner) };
  }

  isUp(host: string): boolean {
    return this.#options.holders.peer(host) !== undefined;
  }

  isAbsent(host: string): boolean {
    return this.#options.holders.isAbsent(host);
  }

  hosts(): string[] {
    return this.#options.holders.peers();
  }

  /** Whether the host takes a connection now. Unlike `probe`, no request follows from it. */
  async reaches(host: string): Promise<boolean> {
    const address = this.#options.holders.peer(host, true);
    return address !== undefined && (await this.#answers(address));
  }

  /** Calls at the same time share one handshake. */
  probe(host: string): Promise<boolean> {
    const probed =
      this.#probes.get(host) ??
      this.#handshake(host).finally(() => {
        this.#probes.delete(host);
      });
    this.#probes.set(host, probed);
    return probed;
  }

  async #handshake(host: string): Promise<boolean> {
    const address = this.#options.holders.peer(host, true) ?? this.#peers.get(host)?.address;
    const isAnswered = address !== undefined && (await this.#answers(address));
    // Until this one has ended, the last one counts: requests are passed on meanwhile.
    if (isAnswered) this.#proven.set(host, address);
    else this.#proven.delete(host);
    return isAnswered;
  }

  async #answers(address: Address): Promise<boolean> {
    try {
      (await connectTo(address, this.#options)).destroy();
      return true;
    } catch {
      return false;
    }
  }

  /** Connections that wait for a request. */
  idle(host: string): number {
    const sockets = this.#peers.get(host)?.agent.freeSockets ?? {};
    return Object.values(sockets).flatMap((each) => each ?? []).length;
  }

  close(): void {
    for (const { agent } of this.#peers.values()) agent.destroy();
    this.#peers.clear();
  }

  #peer(host: string, named: string | undefined): Peer {
    const address = this.#options.holders.peer(host) ?? this.#proven.get(host);
    if (address === undefined) throw unavailable(named, "cannot be reached now");
    const known = this.#peers.get(host);
    if (known !== undefined && known.address.address === address.address && known.address.port === address.port)
      return known;
    // Requests under way end on their connections; those that are idle are closed in 5 s.
    const peer = { address, agent: new PeerAgent(address, this.#options), inUse: new Counts() };
    this.#peers.set(host, peer);
    return peer;
  }
}

class PeerAgent extends Agent {
  readonly #address: Address;
  readonly #options: PeerLinksOptions;

  constructor(address: Address, options: PeerLinksOptions) {
    super({ keepAlive: true, maxFreeSockets: idleMax, timeout: idleMs });
    this.#address = address;
    this.#options = options;
  }

  override createConnection(_options: unknown, callback?: (error: Error | null, socket: Socket) => void): undefined {
    connectTo(this.#address, this.#options).then(
      (socket) => callback?.(null, socket),
      (error: Error) => callback?.(error, undefined as unknown as Socket),
    );
    return undefined;
  }

  override keepSocketAlive(socket: Duplex): boolean {
    socket.once("end", endIdle);
    super.keepSocketAlive(socket);
    return true;
  }

  override reuseSocket(socket: Duplex, request: ClientRequest): void {
    socket.off("end", endIdle);
    super.reuseSocket(socket, request);
  }
}

/** Its other end is closed; a connection that may be half open is not closed by itself. */
function endIdle(this: Duplex): void {
  this.destroy();
}

/** Resolves with an authenticated connection. Rejects with NotConnected. */
function connectTo(
  { host, address, port }: Address,
  { hostName, secret }: Pick<PeerLinksOptions, "hostName" | "secret">,
): Promise<TLSSocket> {
  const options: ConnectionOptions & { allowHalfOpen: boolean } = {
    ...{ ...peerTls, host: address, port, allowHalfOpen: true },
    pskCallback: () => ({ psk: peerKey(secret, hostName, host), identity: hostName }),
    checkServerIdentity: () => undefined, // there is no certificate: the key is the proof
  };
  return new Promise((resolve, reject) => {
    const socket = connect(options);
    const fail = (why: string, cause?: Error) => {
      clearTimeout(late);
      socket.destroy();
      reject(new NotConnected(`host ${host} at ${address}:${port} ${why}`, { cause }));
    };
    const late = setTimeout(() => fail("does not answer"), peerHandshakeMs);
    const failed = (error: Error) => fail("cannot be reached", error);
    socket.once("error", failed);
    socket.once("close", failed);
    socket.once("secureConnect", () => {
      clearTimeout(late);
      socket.off("error", failed).off("close", failed);
      socket.setNoDelay(true).setKeepAlive(true, keepAliveMs);
      resolve(socket);
    });
  });
}

function unavailable(host: string | undefined, why: string, retryAfterSec?: number): CapsuleError {
  const which = host === undefined ? "the host that holds the capsule" : `host ${host}, which holds the capsule,`;
  return new CapsuleError("unavailable", `${which} ${why}`, {
    ...(host === undefined ? {} : { details: { host } }),
    ...(retryAfterSec === undefined ? {} : { retryAfterSec }),
  });
}
