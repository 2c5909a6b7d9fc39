/** The row of a capsule of team-blue as its create writes it, but for what a test says. */
import type { CapsuleRow } from "../../src/db/capsule-rows.ts";

export function capsuleRow(id: string, of: Partial<CapsuleRow> = {}): CapsuleRow {
  return {
    ...{ id, teamId: "team-blue", name: null, labels: "{}", status: "starting", revision: 0, intent: "create" },
    ...{ template: "minimal", storage: null, blockedBy: null, vcpus: 1, memoryMb: 512, diskMb: 2_048, timeoutSec: 0 },
    ...{ createdAt: 1, lastUpdated: 1, startedAt: null, lastActiveAt: null, errorReason: null, onTimeout: "pause" },
    ...{ lifetimeSec: 0, expiresAt: null, onExpiry: "destroy", retentionSec: 0, autoResume: 0, network: null },
    ...of,
  };
}
