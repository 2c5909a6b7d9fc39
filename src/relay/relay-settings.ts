/** The operator's rules and limits as the relay gets them. */
import type { NetworkRules } from "../network/grants.ts";
import type { Limits } from "../wire/limits.ts";
import type { RelaySettings } from "./messages.ts";

/** `roots`: as in RelaySettings. */
export function relaySettings(
  { deny, grants }: NetworkRules,
  limits: Limits,
  roots: readonly string[] = [],
): Omit<RelaySettings, "resolvers"> {
  return {
    reserved: [...deny],
    grants: grants.map(({ text }) => text),
    roots: [...roots],
    limits: {
      connectionsMax: limits.network_connections_max,
      teamConnectionsMax: limits.network_team_connections_max,
      connectionsPerSec: limits.network_connections_per_sec,
      connectionsBurst: limits.network_connections_burst,
      namesPerSec: limits.network_names_per_sec,
      namesInFlightMax: limits.network_names_in_flight_max,
      heldMaxBytes: limits.network_held_max_bytes,
    },
  };
}
