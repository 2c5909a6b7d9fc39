/** The methods of the rooms below that the HTTP server calls. */
import type { Capsules } from "../capsules/capsules.ts";
import type { Audit } from "../teams/audit.ts";
import type { Idempotency } from "../teams/idempotency.ts";
import type { Teams } from "../teams/teams.ts";
import type { Templates } from "../templates/templates.ts";
import type { ServiceState } from "../wire/health.ts";

export type TeamsService = Pick<
  Teams,
  | "authenticate"
  | "holderOf"
  | "now"
  | "isLive"
  | "onRevoked"
  | "key"
  | "keysOf"
  | "issueKey"
  | "issueSessionKey"
  | "revokeKeyOf"
>;

export type CapsulesService = Pick<
  Capsules,
  | "create"
  | "find"
  | "get"
  | "idNamed"
  | "update"
  | "wait"
  | "permit"
  | "admit"
  | "use"
  | "requireWritable"
  | "ping"
  | "pause"
  | "resume"
  | "stop"
  | "start"
  | "destroy"
  | "usage"
  | "urlSecrets"
  | "metrics"
  | "networks"
  | "portAccess"
  | "onPortsChanged"
  | "onEnd"
  | "onChange"
>;

export type TemplatesService = Pick<Templates, "list" | "capture" | "delete" | "onChange">;

export type AuditService = Pick<Audit, "record" | "recordCommand" | "flush" | "list">;

export interface Services {
  teams: TeamsService;
  capsules: CapsulesService;
  templates: TemplatesService;
  audit: AuditService;
  idempotency: Pick<Idempotency, "begin">;
  health: {
    state(): ServiceState;
    network(): { relay: "up" | "down"; egress: "public" | "none" };
    /** Why no capsule can be made now; empty: one can. */
    reasons(): Promise<string[]>;
  };
}
