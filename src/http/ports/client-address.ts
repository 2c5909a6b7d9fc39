/** The address of a request's client: that of its connection, or, behind a trusted proxy on this machine, what the proxy saw. */
import type { IncomingMessage } from "node:http";
import { isLoopback } from "../access/local-caller.ts";
import { linesOf } from "./port-hosts.ts";

const forwardedFor = "x-forwarded-for";

/** As Fastify's `request.ip` with `trustProxy`: the last address that is not the proxy's. */
export function clientAddress(
  { socket, rawHeaders }: Pick<IncomingMessage, "socket" | "rawHeaders">,
  hasProxy: boolean,
): string {
  const remote = socket.remoteAddress ?? "";
  if (!hasProxy || !isLoopback(remote)) return remote;
  const seen = linesOf(rawHeaders, forwardedFor).flatMap((line) => line.split(",").map((each) => each.trim()));
  const addresses = [remote, ...seen.reverse()];
  return addresses.find((address) => !isLoopback(address)) ?? (addresses.at(-1) as string);
}
