/**
 * Closes connections whose client does not read its response, since each holds part of a capsule's output. A connection
 * whose response has no bytes to send yet may be silent for as long as its command takes.
 *
 * One interval checks all connections: a timer per connection would be reset several times per request.
 */
import type { Server } from "node:http";
import type { Socket } from "node:net";
import { Server as TlsServer } from "node:tls";
import { pendingResponse, transferPosition } from "./node-internals.ts";

const checksPerStall = 4;

/** Sockets of accepted WebSockets, which have limits of their own. */
const exempt = new WeakSet<Socket>();

/** A connection is closed after `stallMs` to 1.5 × `stallMs` without a byte in either direction. */
export function closeSlowReaders(server: Server, stallMs: number): void {
  const watch = new StallWatch(stallMs);
  server.on(server instanceof TlsServer ? "secureConnection" : "connection", (socket: Socket) => watch.add(socket));
  server.on("listening", () => {
    const timer = setInterval(() => watch.check(performance.now()), stallMs / checksPerStall).unref();
    server.once("close", () => clearInterval(timer));
  });
}

export class StallWatch {
  readonly #stallMs: number;
  readonly #progress = new Map<Socket, { position: string; sinceMs: number }>();

  constructor(stallMs: number) {
    this.#stallMs = stallMs;
  }

  add(socket: Socket): void {
    this.#progress.set(socket, { position: "", sinceMs: 0 });
    socket.once("close", () => this.#progress.delete(socket));
  }

  /** Closes the connections without progress since a check at least `stallMs` ago. */
  check(nowMs: number): void {
    for (const [socket, progress] of this.#progress) {
      const position = transferPosition(socket);
      if (position !== progress.position) Object.assign(progress, { position, sinceMs: nowMs });
      else if (exempt.has(socket)) this.#progress.delete(socket);
      else if (nowMs - progress.sinceMs >= this.#stallMs && isStalled(socket)) socket.destroy();
    }
  }
}

/** Stops watching this connection. */
export function exemptFromStallWatch(socket: Socket): void {
  exempt.add(socket);
}

/** Either bytes wait for the client, or the server waits for a request. */
function isStalled(socket: Socket): boolean {
  return socket.writableLength > 0 || !(pendingResponse(socket) !== undefined || isIdle(socket));
}

/** Between two requests; Node closes the connection when its keep-alive timeout is over. */
function isIdle(socket: Socket): boolean {
  return (socket.timeout ?? 0) > 0;
}
