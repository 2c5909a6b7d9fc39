/**
 * Messages between the service and the relay, over the channel of a child process. The service trusts the relay's counts and
 * nothing else of it: what a capsule may reach, the relay is told.
 */
import type { OpenInjectRule } from "../network/inject.ts";
import type { Egress, NetworkDecision } from "../wire/network.ts";

/** A capsule's policy after the operator's ceiling. Entries as in NetworkPolicy. */
export interface RelayPolicy {
  egress: Egress;
  allow: string[];
  deny: string[];
  /** Headers of plain HTTP requests that leave as HTTPS; left out: none. No log and no message of the relay has the values. */
  inject?: OpenInjectRule[];
}

/** The operator's rules, which hold for all capsules. */
export interface RelaySettings {
  /** IPv4 or IPv6 addresses, with `:port` or without, as dns.Resolver takes them. */
  resolvers: string[];
  /** CIDRs of the operator, reserved like the fixed ones. */
  reserved: string[];
  /** Reserved destinations that a capsule's `allow` may name; `host:PORT` is this machine's 127.0.0.1. */
  grants: string[];
  /** Certificates in PEM that are trusted beside Node's own. */
  roots?: string[];
  limits: RelayLimits;
}

/** As the rows of the same names of /v1/limits, without `network_`. */
export interface RelayLimits {
  connectionsMax: number;
  teamConnectionsMax: number;
  connectionsPerSec: number;
  connectionsBurst: number;
  namesPerSec: number;
  namesInFlightMax: number;
  heldMaxBytes: number;
}

/** `run`: one hand-over of one capsule's port, counted up by the service. */
export type ToRelay =
  /** The first message, and again after each change. */
  | { kind: "settings"; settings: RelaySettings }
  /** With the connected socket of the capsule's port. */
  | { kind: "attach"; run: number; capsule: string; team: string; policy: RelayPolicy }
  /** Answered by `applied`, when new connections obey it and those that it forbids are reset. */
  | { kind: "policy"; run: number; seq: number; policy: RelayPolicy }
  /** Closes the port's socket and everything that was opened for it. */
  | { kind: "detach"; run: number }
  /** Answered by `state`, after the run's decisions. */
  | { kind: "state"; run: number; seq: number }
  /** Answered by `applied`, after the counts and decisions that are sent once a second. */
  | { kind: "flush"; run: 0; seq: number };

export type FromRelay =
  | { kind: "ready" }
  | { kind: "applied"; seq: number }
  | { kind: "state"; seq: number; connectionsOpen: number }
  /** Once a second while something has changed: what was added since the last one. */
  | { kind: "counts"; runs: [run: number, added: RunCounts][]; names: Record<string, number>; connectionsOpen: number }
  /** Once a second while there are some: what was decided since the last one, oldest first, `count` times since then. */
  | { kind: "decisions"; runs: [run: number, decided: NetworkDecision[]][] }
  /** The port's socket has ended, or its gateway has broken the protocol. */
  | { kind: "lost"; run: number; why: string };

/** Runs in one message of counts. */
export const countedMax = 1_000;
/** Decisions in one message, of all its runs. */
export const decidedMax = 1_000;

export interface RunCounts {
  connections: number;
  denied: number;
  failed: number;
  bytesOut: number;
  bytesIn: number;
}
