/** Requests about the network of a capsule and links to its ports. `path`: the capsule's path in the API. */
import type { NetworkOptions } from "./capsule-options.ts";
import { camelKeys, snakeKeys } from "./key-case.ts";
import { refuseUnknown } from "./options.ts";
import type { NetworkState, PortUrl } from "./resources.ts";
import type { CallOptions, Transport } from "./transport.ts";

export async function readNetwork(transport: Transport, path: string, options: CallOptions): Promise<NetworkState> {
  return camelKeys(await transport.json({ method: "GET", path: `${path}/network`, ...options }));
}

export async function replaceNetwork(
  transport: Transport,
  path: string,
  { egress, allow, deny, publicPorts, hostHeader, inject, ...unknown }: NetworkOptions,
  options: CallOptions,
): Promise<NetworkState> {
  refuseUnknown("setNetwork", unknown);
  const json = snakeKeys({ egress, allow, deny, publicPorts, hostHeader, inject });
  const request = { method: "PUT", path: `${path}/network`, json, repeat: "always" } as const;
  return camelKeys(await transport.json({ ...request, ...options }));
}

export async function makePortUrl(
  transport: Transport,
  path: string,
  port: number,
  { expiresSec, ...options }: { expiresSec?: number } & CallOptions,
): Promise<PortUrl> {
  const json = { expires_sec: expiresSec };
  const request = { method: "POST", path: `${path}/ports/${port}/url`, json, repeat: "always" } as const;
  return camelKeys(await transport.json({ ...request, ...options }));
}

export function revokePortUrls(transport: Transport, path: string, options: CallOptions): Promise<void> {
  return transport.done({ method: "DELETE", path: `${path}/ports/tokens`, repeat: "always", ...options });
}
