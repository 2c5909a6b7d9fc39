/**
 * Ends the connections of a server that closes, each once its request is answered. Node ends those that are idle when the server closes, and
 * lets the others idle for their time after the answer.
 */
import type { Server, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { Server as TlsServer } from "node:tls";
import { pendingResponse } from "./node-internals.ts";

/** As many as the kernel keeps for a port: its `net.core.somaxconn`. */
const acceptedMax = 4_096;

/**
 * Closes the port once the connections that the kernel has for it have been taken: it would reset them with the port, and their clients
 * could not tell whether a request has run. A turn of the event loop takes one connection, so there are none behind two turns that took none.
 */
export async function closeAccepted(server: Server): Promise<void> {
  let accepted = 0;
  const count = () => {
    accepted++;
  };
  server.on("connection", count);
  for (let last = 0, quiet = 0; quiet < 2 && accepted < acceptedMax; last = accepted) {
    await new Promise<void>((resolve) => setImmediate(resolve));
    quiet = accepted === last ? quiet + 1 : 0;
  }
  server.off("connection", count);
  server.close();
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
