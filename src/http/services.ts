/**
 * What the HTTP floor asks of the floors below, and nothing more. Everything here throws CapsuleError; times are epoch
 * milliseconds.
 */
import type { Agent } from "../agent/agent.ts";
import type { AuditAction } from "../wire/audit.ts";
import type { CapsuleStatus } from "../wire/capsule.ts";
import type { Health } from "../wire/health.ts";
import type { Action } from "../wire/requirements.ts";
import type { TemplateType } from "../wire/template.ts";

export interface Identity {
  teamId: string;
  keyId: string;
  keyName: string;
  /** The team's name. */
  team: string;
}

export interface TeamsService {
  /** Who holds this key; undefined when nobody does. Gives an attacker nothing to time. */
  authenticate(apiKey: string): Identity | undefined;
  isLive(keyId: string): boolean;
  /** Calls `listener` once, within a second of the key's end; returns the way to stop listening. */
  onRevoked(keyId: string, listener: () => void): () => void;
  /** The team's live keys, oldest first. */
  keysOf(teamId: string): KeyView[];
  /** A new key; it ends after `lifeMs`, or never. Throws quota_exceeded. */
  issueKey(teamId: string, name: string, lifeMs?: number): KeyView & { key: string };
  /** Throws not_found, also for another team's. */
  revokeKeyOf(teamId: string, keyId: string): void;
}

export interface KeyView {
  id: string;
  name: string;
  /** Its first characters. */
  prefix: string | null;
  createdAt: number;
  lastUsedAt: number | null;
  expiresAt: number | null;
}

export interface CapsuleView {
  readonly id: string;
  readonly status: CapsuleStatus;
  readonly template: string;
  readonly vcpus: number;
  readonly memoryMb: number;
  readonly timeoutSec: number;
  readonly createdAt: number;
  readonly lastUpdated: number;
  readonly startedAt: number | null;
  readonly lastActiveAt: number | null;
  readonly errorReason: string | null;
}

export interface CapsuleRequest {
  template: string;
  vcpus: number;
  memoryMb: number;
  timeoutSec: number;
}

/** Why nobody can be inside a capsule any longer. */
export type RunEnd = "paused" | "destroyed" | "stopped" | "error";

export interface QuotaUsage {
  capsules: number;
  runningVcpus: number;
  runningMemoryMb: number;
  diskBytes: number;
  templates: number;
}

export interface CapsulesService {
  create(teamId: string, request: CapsuleRequest): Promise<CapsuleView>;
  /** Newest first. */
  list(teamId: string): CapsuleView[];
  /** Throws not_found. */
  get(teamId: string, id: string): CapsuleView;
  /** Resolves when the status is reached, cannot be reached any more, the time is over or the signal aborts. */
  wait(teamId: string, id: string, status: CapsuleStatus, timeoutMs: number, signal: AbortSignal): Promise<CapsuleView>;
  /** The gate. Throws not_found for an unknown, malformed or foreign id, then invalid_state. */
  permit(teamId: string, id: string, action: Action): void;
  /** The gate, and the agent inside. */
  enter(teamId: string, id: string, action: Action): Promise<Agent>;
  /** Notes activity now and when the returned function is called; holds auto-pause off in between. */
  beginExec(id: string): () => void;
  ping(teamId: string, id: string): void;
  pause(teamId: string, id: string): Promise<CapsuleView>;
  resume(teamId: string, id: string): Promise<CapsuleView>;
  destroy(teamId: string, id: string): Promise<void>;
  /** What the team has of what is limited. Bytes as of the last look. */
  usage(teamId: string): QuotaUsage;
  /** Calls back once when the running capsule's present life ends; returns the way to stop listening. */
  onEnd(id: string, callback: (end: RunEnd) => void): () => void;
  /** Calls back at every change of any capsule, without a view when it is gone; returns the way to stop listening. */
  onChange(callback: (teamId: string, id: string, view: CapsuleView | undefined) => void): () => void;
}

export interface TemplateView {
  name: string;
  type: TemplateType;
  vcpus: number | null;
  memoryMb: number | null;
  sizeBytes: number;
  createdAt: number;
}

export interface CaptureRequest {
  capsuleId: string;
  name?: string | undefined;
  overwrite: boolean;
}

export interface TemplatesService {
  list(teamId: string, type?: TemplateType): TemplateView[];
  /** Throws not_found, invalid_state, template_name_taken, name_reserved. */
  capture(teamId: string, request: CaptureRequest): Promise<TemplateView>;
  /** Throws not_found. */
  delete(teamId: string, name: string): Promise<void>;
  /** As of capsules. */
  onChange(callback: (teamId: string, name: string, view: TemplateView | undefined) => void): () => void;
}

export interface HealthService {
  health(): Health;
}

/** Who did what to what, from where, and how it was answered. */
export interface AuditRecord {
  teamId: string;
  keyId: string;
  keyName: string;
  address: string;
  action: AuditAction;
  capsuleId: string | null;
  subject: string | null;
  status: number;
}

export interface AuditView extends AuditRecord {
  id: number;
  at: number;
}

export interface AuditService {
  /** Is on disk within a second, or after `flush`. Never throws. */
  record(entry: AuditRecord): void;
  /** Throws when it cannot be written now; it will be tried again. */
  flush(): void;
  /** Newest first, those with an id below `before`. `next`: the `before` of the next page, null at the end. */
  list(
    teamId: string,
    query: { limit: number; before?: number | undefined; capsuleId?: string | undefined },
  ): { entries: AuditView[]; next: number | null };
}

export interface MetricsService {
  requestEnded(method: string, route: string, status: number, seconds: number): void;
  /** All figures, in the form that `contentType` names. */
  text(): Promise<string>;
  contentType: string;
}

/** A request's trace, from its first byte to its last. */
export interface TracingService {
  /** Calls `next` inside the request's span; the returned function ends it. Must not throw by itself. */
  requestBegan(request: TracedRequest, next: () => void): (status: number) => void;
}

export interface TracedRequest {
  method: string;
  /** As declared; `none` where there is none. */
  route: string;
  id: string;
  capsuleId: string | undefined;
  headers: Record<string, string | string[] | undefined>;
}

export interface Services {
  teams: TeamsService;
  capsules: CapsulesService;
  templates: TemplatesService;
  health: HealthService;
  audit: AuditService;
}
