/**
 * Hangs up on clients that do not take what they are sent, since each holds a part of a capsule's output and a
 * connection. A connection on which nothing is to be sent may be silent for as long as its command takes.
 */
import type { Server, ServerResponse } from "node:http";
import type { Socket } from "node:net";

/** `stallMs`: without a byte either way. Accepted WebSockets have their own bounds, and are not touched. */
export function hangUpOnSlowReaders(server: Server, stallMs: number): void {
  server.timeout = stallMs;
  server.on("timeout", (socket: Socket) => {
    if (socket.writableLength > 0 || !isAnswering(socket)) socket.destroy();
  });
}

/** A request on the connection still waits for its answer. */
export function isAnswering(socket: Socket): boolean {
  return ((socket as Socket & { _httpMessage?: ServerResponse | null })._httpMessage ?? null) !== null;
}
