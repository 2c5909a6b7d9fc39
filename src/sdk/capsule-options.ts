/** The options of a change and of a listing, and policies, which a new capsule has too. */
import { snakeKeys } from "./key-case.ts";
import { refuseUnknown } from "./options.ts";
import type { CapsuleStatus, DeadlineAction, Egress } from "./resources.ts";
import type { CallOptions, Request } from "./transport.ts";

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

/** Fields that are left out get their defaults. */
export interface NetworkOptions {
  /** The destinations of the capsule: none, those of `allow`, or every public address. Default: the service's. */
  egress?: Egress;
  /** Domains, `*.` and a domain, IPv4 addresses and ranges, each with `:port` or without. Default: none. */
  allow?: readonly string[];
  /** IPv4 addresses and ranges, each with `:port` or without; they go before `allow`. Default: none. */
  deny?: readonly string[];
  /** Ports whose URL asks for no key. Default: none. */
  publicPorts?: readonly number[];
  /** The Host that servers in the capsule see, such as `localhost:{port}`. Default, null: the client's. */
  hostHeader?: string | null;
  /**
   * Requests to http://{host} leave as HTTPS with these headers, whose values the capsule never has. null, for `setNetwork`: the stored
   * value stays. Default: none.
   */
  inject?: readonly { host: string; headers: Readonly<Record<string, string | null>> }[];
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

export function changeRequest(path: string, { name, labels, ...rest }: CapsuleChange): Request {
  const { policies, ...unknown } = splitPolicies(rest);
  refuseUnknown("update", unknown);
  return { method: "PATCH", path, json: snakeKeys({ name, labels, ...policies }) };
}

export function listRequest({
  status,
  labels = {},
  template,
  name,
  signal,
  timeoutMs,
  ...unknown
}: CapsuleConditions & CallOptions): Request {
  refuseUnknown("list", unknown);
  const label = Object.entries(labels).map(([key, value]) => `${key}=${value}`);
  const query = { status: status === undefined ? undefined : [status].flat().join(","), label, template, name };
  return { method: "GET", path: "/v1/capsules", query, signal, timeoutMs };
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
