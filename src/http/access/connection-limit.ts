/**
 * Bounds the open connections of each network, so that one client cannot take all that the server accepts, and closes those
 * beyond the bounds at once, before a TLS handshake and before a request is read. A connection is kept for long between two
 * requests only once it has shown a valid key, and on a nearly full server no team keeps another one's clients out.
 */
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { Proxies } from "../../network/proxies.ts";
import { keepIdle, pendingResponse, tellKeepAlive, transportOf } from "../node-internals.ts";
import { ConnectionCounts, type Counted } from "./connection-counts.ts";

export interface ConnectionLimitOptions {
  /** Bound of each IPv4 address, and each /64 network of IPv6. */
  max: number;
  perSec: number;
  /** Bound of all clients together. */
  openMax: number;
  /** Their connections carry those of many clients, and are not bounded. */
  proxies: Proxies;
  /** Longest idle time of a connection that has shown a valid key, or that comes from a proxy. */
  keepAliveMs: number;
}

/** Longest idle time of a connection that has shown no valid key. */
const keylessKeepAliveMs = 65_000;
/** Part of `openMax` from which on each new connection closes an idle one. The rest are places to show a key in. */
const nearlyFull = 0.9;

export class ConnectionLimit {
  readonly #options: ConnectionLimitOptions;
  readonly #counts: ConnectionCounts;
  /** By socket, with TLS by both. */
  readonly #connections = new WeakMap<Socket, Connection>();
  readonly #responses = new WeakMap<IncomingMessage, ServerResponse>();
  #open = 0;

  constructor(options: ConnectionLimitOptions) {
    this.#options = options;
    this.#counts = new ConnectionCounts({ ...options, keylessMin: Math.ceil((1 - nearlyFull) * options.openMax) });
  }

  /** For the server's `keepAliveTimeout`. */
  get keylessKeepAliveMs(): number {
    return Math.min(keylessKeepAliveMs, this.#options.keepAliveMs);
  }

  attachTo(server: Server): void {
    server.maxConnections = this.#options.openMax;
    server.on("connection", (socket: Socket) => this.#opened(socket));
    server.on("secureConnection", (socket: Socket) => {
      const connection = this.#connections.get(transportOf(socket));
      if (connection === undefined) return;
      connection.requests = socket;
      this.#connections.set(socket, connection);
    });
    server.prependListener("upgrade", ({ socket }: IncomingMessage) => {
      const connection = this.#connections.get(socket);
      if (connection !== undefined) connection.isUpgraded = true;
    });
    server.prependListener("request", (request, response) => this.#requested(request, response));
  }

  /** The request has a valid key of the team. */
  authenticated(request: IncomingMessage, team: string): void {
    const connection = this.#connections.get(request.socket);
    if (connection === undefined || connection.isKnown) return;
    connection.isKnown = true;
    this.#counts.authenticated(connection, team);
    const response = this.#responses.get(request); // an upgraded connection has none
    if (response !== undefined) tellKeepAlive(response, this.#options.keepAliveMs);
  }

  #opened(socket: Socket): void {
    const address = socket.remoteAddress;
    if (address === undefined) return;
    const isProxy = this.#options.proxies.has(address);
    const isNearlyFull = this.#open >= nearlyFull * this.#options.openMax;
    const connection = new Connection(socket, address, isProxy);
    if (isProxy && isNearlyFull) this.#counts.makeRoom();
    if (!isProxy && !this.#counts.enter(connection, { isNearlyFull })) {
      socket.destroy();
      return;
    }
    this.#connections.set(socket, connection);
    this.#open++;
    socket.once("close", () => {
      this.#open--;
      if (!isProxy) this.#counts.leave(connection);
    });
  }

  #requested(request: IncomingMessage, response: ServerResponse): void {
    const connection = this.#connections.get(request.socket);
    if (connection === undefined) return;
    const { keepAliveMs } = this.#options;
    if (connection.isKnown) tellKeepAlive(response, keepAliveMs);
    else this.#responses.set(request, response);
    response.once("finish", () => {
      if (connection.isKnown) keepIdle(request.socket, keepAliveMs);
      this.#counts.used(connection);
    });
  }
}

class Connection implements Counted {
  readonly address: string;
  /** The socket that requests come from; with TLS, the one below it until the handshake. */
  requests: Socket;
  /** Whether it has shown a valid key, or is a proxy's. */
  isKnown: boolean;
  /** A WebSocket, which has bounds of its own. */
  isUpgraded = false;

  constructor(socket: Socket, address: string, isKnown: boolean) {
    this.address = address;
    this.requests = socket;
    this.isKnown = isKnown;
  }

  isIdle(): boolean {
    return !this.isUpgraded && pendingResponse(this.requests) === undefined;
  }

  close(): void {
    this.requests.destroy();
  }
}
