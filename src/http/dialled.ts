/** A connection to a server in a capsule, for a client. */
import type { Duplex } from "node:stream";
import { AgentFailure } from "../agent/failure.ts";
import type { NetworkVerbs } from "../agent/network-verbs.ts";
import { CapsuleError } from "../wire/errors.ts";

/** Rejects with "port_closed" and the ports that are listened on, as far as `shows` lets the client see them. */
export async function dialled(
  agent: Pick<NetworkVerbs, "dial" | "ports">,
  port: number,
  signal: AbortSignal,
  shows: (port: number) => boolean = () => true,
): Promise<Duplex> {
  try {
    return await agent.dial(port, signal);
  } catch (error) {
    if (!(error instanceof AgentFailure && error.failure === "not_found")) throw error;
    const listening = await agent.ports(signal);
    const ports = [...new Set(listening.map((each) => each.port))].filter(shows);
    throw new CapsuleError("port_closed", `nothing listens on port ${port} in the capsule`, { details: { ports } });
  }
}
