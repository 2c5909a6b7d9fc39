/**
 * Bounds the open connections of one address, so that one client cannot take all that the server accepts. It closes those
 * beyond the bound at once, before a TLS handshake and before a request is read.
 */
import type { Server } from "node:http";
import type { Socket } from "node:net";
import { isLoopback } from "./local-caller.ts";
import { networkOf } from "./network.ts";

export interface ConnectionLimitOptions {
  /** For each IPv4 address, and each /64 network of IPv6. */
  max: number;
  /** Connections from this machine carry those of many clients, and are not bounded. */
  hasProxy: boolean;
}

export function limitConnections(server: Server, { max, hasProxy }: ConnectionLimitOptions): void {
  const counts = new Map<string, number>();
  server.on("connection", (socket: Socket) => {
    const address = socket.remoteAddress;
    if (address === undefined || (hasProxy && isLoopback(address))) return;
    const network = networkOf(address);
    const count = counts.get(network) ?? 0;
    if (count >= max) {
      socket.destroy();
      return;
    }
    counts.set(network, count + 1);
    socket.once("close", () => {
      const rest = (counts.get(network) ?? 0) - 1;
      if (rest > 0) counts.set(network, rest);
      else counts.delete(network);
    });
  });
}
