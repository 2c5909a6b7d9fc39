/**
 * Hangs up on clients that do not take what they are sent, since each holds a part of a capsule's output and a
 * connection. A connection on which nothing is to be sent may be silent for as long as its command takes.
 *
 * All connections are looked at a few times while one may stall. A timer of its own for each would be wound up again four
 * times with every request, which was a twentieth of what a short one costs.
 */
import type { Server, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { Server as TlsServer } from "node:tls";

const looksPerStall = 4;

/** Of accepted WebSockets, which have their own bounds. */
const released = new WeakSet<Socket>();

/** `stallMs`: without a byte either way, or up to half as long again. */
export function hangUpOnSlowReaders(server: Server, stallMs: number): void {
  const watch = new StallWatch(stallMs);
  server.on(server instanceof TlsServer ? "secureConnection" : "connection", (socket: Socket) => watch.add(socket));
  server.on("listening", () => {
    const timer = setInterval(() => watch.check(performance.now()), stallMs / looksPerStall).unref();
    server.once("close", () => clearInterval(timer));
  });
}

export class StallWatch {
  readonly #stallMs: number;
  readonly #stands = new Map<Socket, { bytes: string; sinceMs: number }>();

  constructor(stallMs: number) {
    this.#stallMs = stallMs;
  }

  add(socket: Socket): void {
    this.#stands.set(socket, { bytes: "", sinceMs: 0 });
    socket.once("close", () => this.#stands.delete(socket));
  }

  /** Hangs up on those that have moved no byte since a look that is `stallMs` ago. */
  check(nowMs: number): void {
    for (const [socket, stand] of this.#stands) {
      const bytes = bytesMoved(socket);
      if (bytes !== stand.bytes) Object.assign(stand, { bytes, sinceMs: nowMs });
      else if (released.has(socket)) this.#stands.delete(socket);
      else if (nowMs - stand.sinceMs >= this.#stallMs && isStalled(socket)) socket.destroy();
    }
  }
}

/** The connection is somebody else's to watch from here on. */
export function release(socket: Socket): void {
  released.add(socket);
}

/** A request on the connection still waits for its answer. */
export function isAnswering(socket: Socket): boolean {
  return ((socket as Socket & { _httpMessage?: ServerResponse | null })._httpMessage ?? null) !== null;
}

function isStalled(socket: Socket): boolean {
  return socket.writableLength > 0 || !isAnswering(socket);
}

interface Handle {
  /** What Node has handed over: nothing more before all of that has gone. */
  bytesWritten: number;
  /** Of that, what the system has not taken yet. */
  writeQueueSize: number;
}

/** Changes with every byte that the client has sent or taken, and with none that only waits for it. */
function bytesMoved(socket: Socket): string {
  const handle = (socket as Socket & { _handle?: Handle | null })._handle;
  return [socket.bytesRead, handle?.bytesWritten, handle?.writeQueueSize].join(" ");
}
