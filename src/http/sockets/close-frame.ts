/** The close frame of a client. ws answers it by itself, and tells of it with "close", when the connection has ended on both sides. */
import type { WebSocket } from "ws";

interface Receiver {
  on(event: "conclude", listener: () => void): void;
}

/** Calls back when the close frame has come, in the turn in which it is answered. */
export function onCloseFrame(socket: WebSocket, callback: () => void): void {
  (socket as unknown as { _receiver: Receiver })._receiver.on("conclude", callback);
}
