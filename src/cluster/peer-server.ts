/** The peer port: requests that other hosts of the cluster pass on, over connections that have proven the cluster's secret. */
import type { IncomingMessage } from "node:http";
import { createServer, type Server } from "node:https";
import type { AddressInfo, Socket } from "node:net";
import { Counts } from "../counts.ts";
import { transportOf } from "../http/node-internals.ts";
import type { Log } from "../log.ts";
import { peerConnectionsMax, peerHandshakeMs, peerKey, peerTls } from "./peer-keys.ts";

/** Connections of all hosts together, those without a handshake included. */
const connectionsMax = 4_096;
/** Connections whose host has not proven the secret yet. */
const handshakesMax = 256;
/** Connections of one address among them, which may be that of several hosts. */
const handshakesOfAddressMax = 64;
/** A connection beside those of requests, by which a host asks whether this one is there. */
const probesMax = 8;
/** A client's head has 16 KiB at most; the header that names the client is added to it. */
const headMaxBytes = 24 * 1024;
const headMs = 20_000;
const idleMs = 65_000;
const checkMs = 5_000;
const nameMaxLength = 253;
/** Between two lines about refused connections. */
const warnEveryMs = 60_000;

/** As PeerRequests of the HTTP server. */
export interface PeerHandler {
  asksForUpgrade(request: IncomingMessage): boolean;
  serve(peers: Server, hostOf: (socket: Socket) => string | undefined): void;
}

export interface PeerServerOptions {
  hostName: string;
  secret: Uint8Array;
  handler: PeerHandler;
  log: Log;
}

export class PeerServer {
  readonly #options: PeerServerOptions;
  readonly #server: Server;
  /** The name that a connection's key belongs to. */
  readonly #names = new WeakMap<object, string>();
  readonly #open = new Counts();
  /** Connections that have proven nothing yet. */
  readonly #handshakes = new Set<Socket>();
  /** Their number, by address. */
  readonly #handshakesOf = new Counts();
  /** A closed socket has none any more. */
  readonly #addresses = new WeakMap<Socket, string>();
  #refused = 0;
  #warnedMs = Number.NEGATIVE_INFINITY;

  constructor(options: PeerServerOptions) {
    this.#options = options;
    const { handler } = options;
    this.#server = createServer({
      ...{ ...peerTls, handshakeTimeout: peerHandshakeMs, allowHalfOpen: true },
      pskCallback: (socket, name) => this.#keyOf(socket, name),
      ...{ maxHeaderSize: headMaxBytes, headersTimeout: headMs, requestTimeout: 0, keepAliveTimeout: idleMs },
      ...{ connectionsCheckingInterval: checkMs, optimizeEmptyRequests: true, requireHostHeader: false },
      shouldUpgradeCallback: (request: IncomingMessage) => handler.asksForUpgrade(request),
    });
    this.#server.maxConnections = connectionsMax;
    this.#server.on("connection", (socket: Socket) => this.#connected(socket));
    this.#server.on("secureConnection", (socket: Socket) => this.#proven(socket));
    this.#server.on("tlsClientError", () => this.#warn());
    this.#server.on("clientError", (_error, socket) => socket.destroy());
    handler.serve(this.#server, (socket) => this.#names.get(socket));
  }

  /** Resolves with the port. */
  listen({ host, port }: { host?: string; port: number }): Promise<number> {
    const server = this.#server;
    return new Promise((resolve, reject) => {
      server.once("error", reject);
      server.listen({ host, port, exclusive: true }, () => {
        server.off("error", reject);
        resolve((server.address() as AddressInfo).port);
      });
    });
  }

  /** Connections that have proven the secret. */
  connectionsOf(host: string): number {
    return this.#open.of(host);
  }

  /** Resolves when no connection is left; the HTTP server that answers ends those with requests in progress within its own time. */
  close(): Promise<void> {
    return new Promise((resolve) => {
      this.#server.close(() => resolve());
      this.#server.closeIdleConnections();
    });
  }

  #keyOf(socket: object, name: string): Buffer | null {
    if (name.length === 0 || name.length > nameMaxLength) return null;
    this.#names.set(socket, name);
    return peerKey(this.#options.secret, name, this.#options.hostName);
  }

  #connected(socket: Socket): void {
    const { remoteAddress: address = "" } = socket;
    if (this.#handshakes.size >= handshakesMax || this.#handshakesOf.of(address) >= handshakesOfAddressMax) {
      socket.destroy();
      return;
    }
    socket.setNoDelay(true);
    this.#handshakes.add(socket);
    this.#handshakesOf.add(address);
    this.#addresses.set(socket, address);
    socket.once("close", () => this.#endHandshake(socket));
  }

  #proven(socket: Socket): void {
    this.#endHandshake(transportOf(socket));
    const name = this.#names.get(socket);
    if (name === undefined || this.#open.of(name) >= peerConnectionsMax + probesMax) {
      socket.destroy();
      return;
    }
    this.#open.add(name);
    socket.once("close", () => this.#open.subtract(name));
  }

  #endHandshake(socket: Socket): void {
    if (this.#handshakes.delete(socket)) this.#handshakesOf.subtract(this.#addresses.get(socket) ?? "");
  }

  /** A wrong secret is the operator's to find. */
  #warn(): void {
    this.#refused++;
    const nowMs = performance.now();
    if (nowMs - this.#warnedMs < warnEveryMs) return;
    this.#options.log.warn(
      { refused: this.#refused },
      "connections to the peer port did not prove the cluster's secret",
    );
    this.#warnedMs = nowMs;
    this.#refused = 0;
  }
}
