/** The parts of the rooms below that the HTTP server uses. Their classes fit these types; tests pass fakes. */
import type { Capsules, CapsuleView } from "../capsules/capsules.ts";
import type { Audit } from "../teams/audit.ts";
import type { Teams } from "../teams/teams.ts";
import type { Templates } from "../templates/templates.ts";
import type { CapsuleStatus } from "../wire/capsule.ts";
import type { ServiceState } from "../wire/health.ts";
import type { Action } from "../wire/requirements.ts";

export type TeamsService = Pick<
  Teams,
  "authenticate" | "isLive" | "onRevoked" | "keysOf" | "issueKey" | "issueSessionKey" | "revokeKeyOf"
>;

export interface CapsulesService
  extends Pick<
    Capsules,
    | "create"
    | "list"
    | "get"
    | "use"
    | "requireWritable"
    | "ping"
    | "pause"
    | "resume"
    | "destroy"
    | "usage"
    | "onEnd"
    | "onChange"
  > {
  /** Also for statuses of the wire that no capsule has. */
  wait(teamId: string, id: string, status: CapsuleStatus, timeoutMs: number, signal: AbortSignal): Promise<CapsuleView>;
  /** Throws not_found, then invalid_state. */
  permit(teamId: string, id: string, action: Action): void;
}

export type TemplatesService = Pick<Templates, "list" | "capture" | "delete" | "onChange">;

export type AuditService = Pick<Audit, "record" | "flush" | "list">;

export interface Services {
  teams: TeamsService;
  capsules: CapsulesService;
  templates: TemplatesService;
  audit: AuditService;
  health: {
    state(): ServiceState;
    /** Why no capsule can be made now; empty: one can. */
    reasons(): Promise<string[]>;
  };
}
