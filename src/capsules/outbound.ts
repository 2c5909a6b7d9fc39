/** The way out of running capsules, which a process of its own serves: a capsule without one reaches nothing. */
import type { EffectivePolicy } from "../network/effective.ts";
import type { OpenInjectRule } from "../network/inject.ts";

export interface OutboundPolicy extends EffectivePolicy {
  /** Left out: none. Its values are secrets: no answer and no log may have them. */
  inject?: OpenInjectRule[];
}

/** The run of a capsule whose guest has a gateway. */
export interface OutboundRun {
  id: string;
  teamId: string;
  /** The path of the socket of the guest's network port. */
  socket: string;
  policy: OutboundPolicy;
}

/** The connections of a running capsule. */
export interface OutboundState {
  connectionsOpen: number;
}

/** Added to a capsule's counters. */
export interface OutboundCounts {
  connections: number;
  denied: number;
  bytesOut: number;
  bytesIn: number;
}

/** No method may throw. */
export interface Outbound {
  /** The capsule's processes run. Returns at once, and connects later. */
  began(run: OutboundRun): void;
  /** Resolves when new connections obey the policy and those that it forbids are reset, or nothing goes out. Never rejects. */
  changed(id: string, policy: OutboundPolicy): Promise<void>;
  /** Its run has ended: its connections are closed. Called also where `began` was not. */
  ended(id: string): void;
  /** Zero where there is no run, or no answer in a second. Never rejects. */
  state(id: string): Promise<OutboundState>;
}

export const noOutbound: Outbound = {
  began() {},
  changed: async () => {},
  ended() {},
  state: async () => ({ connectionsOpen: 0 }),
};
