/**
 * Ends the connections of a server that closes, each once its request is answered. Node ends those that are idle when the server closes, and
 * lets the others idle for their time after the answer.
 */
import type { Server, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { Server as TlsServer } from "node:tls";
import { pendingResponse } from "./node-internals.ts";

/**
 * Resolves when the connections and requests that had reached this process have been taken: the kernel would reset them with the port, and
 * their clients could not tell whether they have run. The next turn but one of the event loop begins behind a poll of all sockets.
 */
export async function allAccepted(): Promise<void> {
  for (let turn = 0; turn < 2; turn++) await new Promise<void>((resolve) => setImmediate(resolve));
}

/** Call the returned function when the server begins to close, with the time after which no connection is waited for. */
export function endWhenAnswered(server: Server): (drainMs: number) => void {
  const sockets = new Set<Socket>();
  server.on(server instanceof TlsServer ? "secureConnection" : "connection", (socket: Socket) => {
    sockets.add(socket);
    socket.once("close", () => sockets.delete(socket));
  });
  return (drainMs) => {
    setTimeout(() => server.closeAllConnections(), drainMs).unref();
    server.prependListener("request", (_request, response: ServerResponse) => {
      response.shouldKeepAlive = false;
    });
    for (const socket of sockets) {
      const response = pendingResponse(socket);
      if (response !== undefined) endAfter(response, socket);
    }
  };
}

function endAfter(response: ServerResponse, socket: Socket): void {
  if (!response.headersSent) response.shouldKeepAlive = false;
  else response.once("finish", () => socket.destroySoon());
}
