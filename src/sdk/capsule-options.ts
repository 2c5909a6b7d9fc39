/** The options of a change and of a listing, and policies, which a new capsule has too. */
import type { CapsuleStatus, DeadlineAction } from "./resources.ts";

/** Changes of a capsule without a request. */
export interface CapsulePolicies {
  /** Seconds without a command until `onTimeout`; 0: never. Default: `timeoutDefaultSec` of the limits. */
  timeoutSec?: number;
  /** Default: `pause`. */
  onTimeout?: DeadlineAction;
  /** Longest time in `running`, in seconds; for a running capsule from now on. 0: any. Default: `lifetimeDefaultSec` of the limits. */
  lifetimeSec?: number;
  /** Effect of the lifetime's end. Default: `destroy`. */
  onExpiry?: DeadlineAction;
  /** Seconds in `paused`, `stopped` or `error` after which it is destroyed; 0: never. Default: `retentionDefaultSec` of the limits. */
  retentionSec?: number;
  /** Calls that need it running resume it, and wait up to a minute for that. Default: false. */
  autoResume?: boolean;
}

/** For `update`; fields that are left out stay. */
export interface CapsuleChange extends CapsulePolicies {
  /** null takes the name away. */
  name?: string | null;
  /** Added to the labels; null removes one. */
  labels?: Record<string, string | null>;
}

/** All of them must hold. */
export interface CapsuleConditions {
  /** One of these. */
  status?: CapsuleStatus | readonly CapsuleStatus[];
  labels?: Record<string, string>;
  template?: string;
  name?: string;
}

/** A part of a series of metrics. */
export interface MetricOptions {
  /** Unix time in milliseconds: only points later than this. Default: all. */
  since?: number;
  /** Seconds between two points. 10, the default: the last hour; 300: the last day. */
  step?: 10 | 300;
}

/** `policies` has the fields of CapsulePolicies; the others stay. */
export function splitPolicies(options: CapsulePolicies): { policies: CapsulePolicies } {
  const { timeoutSec, onTimeout, lifetimeSec, onExpiry, retentionSec, autoResume, ...rest } = options;
  return {
    ...rest,
    policies: { timeoutSec, onTimeout, lifetimeSec, onExpiry, retentionSec, autoResume } as CapsulePolicies,
  };
}
