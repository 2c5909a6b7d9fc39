/** The address of a request's client: that of its connection, or, behind a trusted proxy, what the proxy saw. */
import type { IncomingMessage } from "node:http";
import type { Proxies } from "../../network/proxies.ts";
import { linesOf } from "./port-hosts.ts";

const forwardedFor = "x-forwarded-for";

/** As Fastify's `request.ip` with `trustProxy`: the last address that is no proxy's. */
export function clientAddress(
  { socket, rawHeaders }: Pick<IncomingMessage, "socket" | "rawHeaders">,
  proxies: Proxies,
): string {
  const remote = socket.remoteAddress ?? "";
  if (!proxies.has(remote)) return remote;
  const seen = linesOf(rawHeaders, forwardedFor).flatMap((line) => line.split(",").map((each) => each.trim()));
  const addresses = [remote, ...seen.reverse()];
  return addresses.find((address) => !proxies.has(address)) ?? (addresses.at(-1) as string);
}
