/**
 * Bounds the open connections of one address, so that one client cannot take all that the server accepts. It closes those
 * beyond the bound at once, before a TLS handshake and before a request is read.
 */
import type { Server } from "node:http";
import type { Socket } from "node:net";
import { Counts } from "../../counts.ts";
import { isLoopback } from "./local-caller.ts";
import { networkOf } from "./network.ts";

export interface ConnectionLimitOptions {
  /** For each IPv4 address, and each /64 network of IPv6. */
  max: number;
  /** Connections from this machine carry those of many clients, and are not bounded. */
  hasProxy: boolean;
}

export function limitConnections(server: Server, { max, hasProxy }: ConnectionLimitOptions): void {
  const counts = new Counts();
  server.on("connection", (socket: Socket) => {
    const address = socket.remoteAddress;
    if (address === undefined || (hasProxy && isLoopback(address))) return;
    const network = networkOf(address);
    if (counts.of(network) >= max) {
      socket.destroy();
      return;
    }
    counts.add(network);
    socket.once("close", () => counts.subtract(network));
  });
}
