/** The parts of a host's service that its cluster changes, and the calls by which it does. */
import type { Captures } from "../capsules/captures.ts";
import type { Decisions } from "../capsules/decisions.ts";
import type { Capsule } from "../capsules/store.ts";
import type { CapsuleView } from "../capsules/view.ts";
import type { TeamRow } from "../db/team-rows.ts";
import type { ReleasedFiles } from "./acquiring.ts";
import type { RetiredTemplate } from "./catalog.ts";
import type { LeftService } from "./leaving.ts";
import type { MovingService } from "./moves.ts";
import type { Room } from "./placement.ts";

export interface ClusterService extends Omit<LeftService, "decisions"> {
  decisions: Decisions;
  captures: Captures;
  end: (row: Capsule) => Promise<void>;
  stop: (id: string, reason: string) => boolean;
  rename: (row: Capsule, name: string | null) => void;
  viewOf: (row: Capsule) => CapsuleView;
  onTeamDeleted: (team: TeamRow) => boolean;
  onRetired: (templates: RetiredTemplate[]) => Promise<void>;
  /** Keys may have ended. */
  onKeys: () => void;
  room: () => Omit<Room, "vcpus_max" | "memory_max_mb">;
  /** As hosts of the cluster show it to their operator. */
  machine: () => Readonly<Record<string, unknown>>;
  /** The files of capsules that no host holds; default: the cluster has no bucket. */
  files?: ReleasedFiles | undefined;
  /** Whether VMs are started ahead of time. */
  keepReady: (isKept: boolean) => void;
  moving: MovingService;
}
