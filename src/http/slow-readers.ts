/**
 * Closes connections whose client reads its response too slowly, since each holds part of a capsule's output. A connection
 * whose response has no bytes to send yet may be silent for as long as its command takes.
 *
 * One interval checks all connections: a timer per connection would be reset several times per request.
 */
import type { Server } from "node:http";
import type { Socket } from "node:net";
import { Server as TlsServer } from "node:tls";
import { pendingResponse, transferred } from "./node-internals.ts";

const checksPerStall = 4;
/** Bytes of its response that a client has to read in each `stallMs`, while more wait for it. */
const leastBytes = 64 * 1024;

/** Sockets of accepted WebSockets, which have limits of their own. */
const exempt = new WeakSet<Socket>();

/** A connection is closed after `stallMs` to 1.5 × `stallMs` without progress. */
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
  /** Since the last progress. */
  readonly #marks = new Map<Socket, Mark>();

  constructor(stallMs: number) {
    this.#stallMs = stallMs;
  }

  add(socket: Socket): void {
    this.#marks.set(socket, { received: -1, accepted: -1, hasUnread: false, sinceMs: 0 });
    socket.once("close", () => this.#marks.delete(socket));
  }

  /** Closes the connections without progress since a check at least `stallMs` ago. */
  check(nowMs: number): void {
    for (const [socket, mark] of this.#marks) {
      const now = { ...transferred(socket), hasUnread: socket.writableLength > 0 };
      if (hasProgress(mark, now)) Object.assign(mark, { ...now, sinceMs: nowMs });
      else if (exempt.has(socket)) this.#marks.delete(socket);
      else if (nowMs - mark.sinceMs >= this.#stallMs && isStalled(socket)) socket.destroy();
    }
  }
}

interface Position {
  received: number;
  accepted: number;
  /** Bytes wait for the client. */
  hasUnread: boolean;
}

interface Mark extends Position {
  sinceMs: number;
}

/**
 * While bytes wait for the client, only reading them counts, and not a byte at a time. Its time for that begins at the first
 * check that finds some, however long the connection was silent before.
 */
function hasProgress(before: Mark, now: Position): boolean {
  if (before.received === -1 || (now.hasUnread && !before.hasUnread)) return true;
  if (now.hasUnread) return now.accepted - before.accepted >= leastBytes;
  return now.received !== before.received || now.accepted !== before.accepted;
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
