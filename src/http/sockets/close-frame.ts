/** The close frame of a client. ws answers it by itself, and tells of it with "close", when the connection has ended on both sides. */
import type { Socket } from "node:net";
import type { WebSocket } from "ws";

interface Internals {
  _receiver: { on(event: "conclude", listener: () => void): void };
  _socket: Socket;
}

/**
 * Calls back when the operating system has the answer to the close frame, and so all messages before it; never when the connection has
 * ended before, which is a "close".
 */
export function onCloseAnswered(socket: WebSocket, callback: () => void): void {
  const { _receiver: receiver, _socket: below } = socket as unknown as Internals;
  receiver.on("conclude", () => {
    if (below.writable) below.write("", () => callback());
  });
}
