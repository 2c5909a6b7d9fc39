/** The methods of the rooms below that the HTTP server calls. */
import type { Capsules, CapsuleView } from "../capsules/capsules.ts";
import type { Audit } from "../teams/audit.ts";
import type { Idempotency } from "../teams/idempotency.ts";
import type { KeyView, Requester, Teams } from "../teams/teams.ts";
import type { Templates, TemplateView } from "../templates/templates.ts";
import type { ServiceState } from "../wire/health.ts";
import type { ReleasedCapsules } from "./released.ts";

/** The methods of `T` with these names, whose results may come later. */
type Later<T, Names extends keyof T> = {
  [Name in Names]: T[Name] extends (...of: infer Of) => infer Result ? (...of: Of) => Result | Promise<Result> : never;
};

export type TeamsService = Pick<
  Teams,
  "authenticate" | "holderOf" | "now" | "isLive" | "hasEnded" | "onRevoked" | "key" | "keysOf"
> &
  Later<Teams, "issueKey" | "revokeKeyOf"> & {
    /** As of Teams. `id`: of the new key; "conflict" where another one has it. */
    issueSessionKey(...of: [...SessionKey, id?: string]): MadeKey | Promise<MadeKey>;
  };

type SessionKey = [requester: Requester, name: string, lifeMs: number];
type MadeKey = KeyView & { key: string };

/** A key's text, or the id of one, which a ticket names or another host. */
export type Credential = { key: string } | { keyId: string };

/** Keys that another host has made, which this one may not have heard of yet. */
export interface UnheardKeys {
  /** Whether `learn` may find a key that this host does not know. */
  isUnheard(credential: Credential): boolean;
  /** Whether it is a key, which this host knows from then on. Rejects with "unavailable". */
  learn(credential: Credential): Promise<boolean>;
  /** As `learn`, of a key that another host has accepted: where it cannot be learned, that host's word counts. Never rejects. */
  vouch(keyId: string): Promise<void>;
}

export type SharedChange =
  | { kind: "capsule"; view: CapsuleView }
  | { kind: "capsule-removed"; id: string }
  | { kind: "template"; view: TemplateView }
  | { kind: "template-removed"; name: string }
  /** Changes before this one cannot be told. */
  | { kind: "reset" };

/** A stream that begins behind a change. */
export interface Opened {
  /** The id of the last change before the stream's own. */
  id: string;
  /** The changes that its client has missed; undefined: there are too many, or they cannot be told. */
  missed: { id: string; change: SharedChange }[] | undefined;
  end: () => void;
}

/** Changes of a team on all hosts, with ids that all hosts share. */
export interface SharedEvents {
  /** Calls `listener` with each change of a team that has streams, in the order of the ids. */
  onChange(listener: (teamId: string, id: string, change: SharedChange) => void): () => void;
  /** Later changes are told until `end` of what `begin` gets is called. Rejects with "unavailable", or the error of `begin`. */
  open<T>(teamId: string, lastId: string | undefined, begin: (opened: Opened) => T): Promise<T>;
}

export type CapsulesService = Later<Capsules, "usage"> &
  Pick<
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
    | "urlSecrets"
    | "metrics"
    | "networks"
    | "portAccess"
    | "onPortsChanged"
    | "onEnd"
    | "onChange"
  >;

export type TemplatesService = Pick<Templates, "capture" | "delete" | "onChange"> & Later<Templates, "list">;

export type AuditService = Pick<Audit, "record" | "recordCommand" | "flush" | "list"> & {
  /** As `list`, where there are other hosts. Rejects with "unavailable". */
  ofAllHosts?(...of: Parameters<Audit["list"]>): Promise<ReturnType<Audit["list"]>>;
};

export interface Services {
  teams: TeamsService;
  /** undefined: there are no other hosts. */
  unheardKeys?: UnheardKeys;
  capsules: CapsulesService;
  templates: TemplatesService;
  audit: AuditService;
  idempotency: Pick<Idempotency, "begin">;
  health: {
    state(): ServiceState;
    network(): { relay: "up" | "down"; egress: "public" | "none" };
    /** Why no capsule can be made now; empty: one can. */
    reasons(): Promise<string[]>;
    /** Why none can be made by this host, which is no reason to take it out of service: its capsules run on. */
    away?(): string[];
    /** Parts that are away, without which capsules can be made. */
    warnings?(): string[];
  };
  /** undefined: there are no other hosts. */
  sharedEvents?: SharedEvents;
  /** undefined: a host holds each capsule. */
  released?: ReleasedCapsules | undefined;
}
