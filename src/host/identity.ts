/** What makes one guest different from every other that woke from the same checkpoint. */
import { createHash, randomBytes } from "node:crypto";
import type { Wake } from "../agent/agent.ts";

const entropyBytes = 64;

/**
 * Identity for a guest about to wake: host name and machine id are the capsule's own and stay the same through its life,
 * the random bytes are new each time.
 */
export function identityOf(id: string): Wake {
  const machineId = createHash("sha256").update(`machine-id of ${id}`).digest("hex").slice(0, 32);
  return { hostname: id, machineId, entropy: randomBytes(entropyBytes) };
}
