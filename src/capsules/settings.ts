/** The settings of a capsule, which a client may change at any time: name, labels, and what happens to it by itself. */
import type { CapsuleSettings } from "../db/capsule-rows.ts";
import type { InjectValue } from "../network/inject.ts";
import { encodePolicy, type NetworkPolicy } from "../network/policy.ts";
import { type DeadlineAction, labelsMax, labelValueMaxBytes } from "../wire/capsule.ts";
import { policyDefaults } from "../wire/defaults.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Capsule } from "./store.ts";

export type Labels = Record<string, string>;

/** Changes of a capsule without a request. */
export interface Policies {
  onTimeout: DeadlineAction;
  /** Longest time in `running`; 0: any. */
  lifetimeSec: number;
  onExpiry: DeadlineAction;
  /** Longest time in `paused`, `stopped` or `error`, after which it is destroyed; 0: any. */
  retentionSec: number;
  /** Requests resume it. */
  autoResume: boolean;
}

/** Fields that are left out stay, or get their defaults. */
export type PolicyChange = { [Policy in keyof Policies]?: Policies[Policy] | undefined };

export interface SettingsChange extends PolicyChange {
  /** null takes the name away. */
  name?: string | null;
  /** Added to those that the capsule has; null removes one. */
  labels?: Record<string, string | null>;
  timeoutSec?: number | undefined;
  /** Replaces the one that the capsule has. */
  network?: NetworkPolicy;
  /** The values of the network's headers. */
  injected?: readonly InjectValue[];
}

/** The policies of a new capsule. Its times come with the request, or from the limits of the service. */
export function policiesOf(given: PolicyChange): Pick<Capsule, keyof Policies> {
  return {
    onTimeout: given.onTimeout ?? policyDefaults.on_timeout,
    lifetimeSec: given.lifetimeSec ?? 0,
    onExpiry: given.onExpiry ?? policyDefaults.on_expiry,
    retentionSec: given.retentionSec ?? 0,
    autoResume: Number(given.autoResume ?? policyDefaults.auto_resume),
  };
}

/** The settings of `row` after `change` at the time `now`. Throws CapsuleError("invalid_request"). */
export function settingsAfter(
  row: Pick<Capsule, keyof CapsuleSettings | "status">,
  change: SettingsChange,
  now: number,
): CapsuleSettings {
  return {
    name: change.name === undefined ? row.name : change.name,
    labels: change.labels === undefined ? row.labels : encodeLabels(merged(labelsOf(row), change.labels)),
    timeoutSec: change.timeoutSec ?? row.timeoutSec,
    onTimeout: change.onTimeout ?? row.onTimeout,
    lifetimeSec: change.lifetimeSec ?? row.lifetimeSec,
    expiresAt: expiryAfter(row, change, now),
    onExpiry: change.onExpiry ?? row.onExpiry,
    retentionSec: change.retentionSec ?? row.retentionSec,
    autoResume: Number(change.autoResume ?? row.autoResume),
    network: change.network === undefined ? row.network : encodePolicy(change.network),
  };
}

/** Whether the row has these settings already. */
export function changesNothing(row: CapsuleSettings, settings: CapsuleSettings): boolean {
  return (Object.keys(settings) as (keyof CapsuleSettings)[]).every((name) => row[name] === settings[name]);
}

/** A new lifetime of a running capsule counts from now, that of another one from its next run. */
function expiryAfter(
  { status, expiresAt }: Pick<Capsule, "status" | "expiresAt">,
  { lifetimeSec }: SettingsChange,
  now: number,
): number | null {
  if (lifetimeSec === undefined) return expiresAt;
  return status === "running" && lifetimeSec > 0 ? now + lifetimeSec * 1_000 : null;
}

/** None where the row's text is none that `encodeLabels` made. */
export function labelsOf({ labels }: Pick<Capsule, "labels">): Labels {
  try {
    const value: unknown = JSON.parse(labels);
    return isLabels(value) ? value : {};
  } catch {
    return {};
  }
}

function isLabels(value: unknown): value is Labels {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  return Object.values(value).every((each) => typeof each === "string");
}

/** As the row has them. Throws CapsuleError("invalid_request") when there are too many, or a value is too long. */
export function encodeLabels(labels: Labels): string {
  const entries = Object.entries(labels);
  if (entries.length > labelsMax)
    throw refusal("labels", `a capsule has at most ${labelsMax} labels, not ${entries.length}`);
  for (const [key, value] of entries) {
    if (Buffer.byteLength(value) > labelValueMaxBytes)
      throw refusal(`labels/${key}`, `the label ${key} has more than ${labelValueMaxBytes} bytes of UTF-8`);
  }
  return JSON.stringify(labels);
}

function merged(labels: Labels, change: Record<string, string | null>): Labels {
  const result = new Map(Object.entries(labels));
  for (const [key, value] of Object.entries(change)) {
    if (value === null) result.delete(key);
    else result.set(key, value);
  }
  return Object.fromEntries(result);
}

function refusal(field: string, message: string): CapsuleError {
  return new CapsuleError("invalid_request", message, { details: { field } });
}
