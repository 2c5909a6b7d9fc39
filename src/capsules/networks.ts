/** The networks of capsules: what they reach, who reaches their ports, and the secrets under which tokens for those are signed. */
import { EventEmitter } from "node:events";
import type { PortRows } from "../db/port-rows.ts";
import type { Guest, Host } from "../host/host.ts";
import type { Step } from "../host/steps.ts";
import { type EffectivePolicy, effectivePolicy } from "../network/effective.ts";
import type { NetworkRules } from "../network/grants.ts";
import { type InjectLimits, type InjectValue, parseInject } from "../network/inject.ts";
import { decodePolicy, type NetworkPolicy, noNetwork, type PolicyLimits, parseNetwork } from "../network/policy.ts";
import { newPortSecret } from "../network/port-tokens.ts";
import type { NetworkDecision } from "../wire/network.ts";
import type { InjectValues } from "./inject-values.ts";
import type { NetworkCounters } from "./network-counters.ts";
import type { NetworkDecisions } from "./network-decisions.ts";
import type { Outbound, OutboundCounts, OutboundPolicy, OutboundState } from "./outbound.ts";
import type { RunObserver } from "./run-policy.ts";
import type { Runs } from "./runs.ts";
import type { Capsule, CapsuleStore } from "./store.ts";

export interface PortAccess {
  teamId: string;
  publicPorts: readonly number[];
  /** As in NetworkPolicy. */
  hostHeader: string | null;
  /** null: none was made yet, and so no token. */
  secret: Buffer | null;
}

/** A capsule's policy, and what became of it. */
export interface NetworkView extends OutboundState {
  policy: NetworkPolicy;
  /** With the operator's reserved ranges in `deny`. */
  effective: EffectivePolicy;
  counters: OutboundCounts;
  /** The decisions of its run, oldest first. */
  recent: NetworkDecision[];
  /** It reaches nothing, whatever its policy: its machine was made before there was a network. */
  isUnsupported: boolean;
}

export interface GivenNetwork {
  network: NetworkPolicy;
  /** The values of its headers. */
  injected: InjectValue[];
}

export interface NetworksOptions {
  rows: PortRows;
  store: Pick<CapsuleStore, "require" | "get">;
  host: Pick<Host, "hasNetwork">;
  runs: Pick<Runs, "guest">;
  rules: NetworkRules;
  counters: NetworkCounters;
  decisions: NetworkDecisions;
  injectValues: InjectValues;
  outbound: Outbound;
  step: Step;
}

export class Networks implements RunObserver {
  readonly #options: NetworksOptions;
  readonly #rows: PortRows;
  readonly #store: Pick<CapsuleStore, "require" | "get">;
  readonly #emitter = new EventEmitter().setMaxListeners(0);

  constructor(options: NetworksOptions) {
    this.#options = options;
    this.#rows = options.rows;
    this.#store = options.store;
  }

  began(row: Capsule, { networkSocket: socket }: Guest, isAdopted: boolean): void {
    const { id, teamId, startedAt } = row;
    if (socket === null) return;
    this.#options.decisions.began(id, startedAt ?? 0, isAdopted);
    this.#options.outbound.began({ id, teamId, socket, policy: this.#outboundPolicy(row) });
  }

  ended(id: string): void {
    this.#options.outbound.ended(id);
    this.#options.decisions.ended(id);
  }

  /** Call it after a change of the row's. Resolves when the running capsule obeys its row's policy, or reaches nothing. */
  async applied(id: string): Promise<void> {
    const { step, outbound } = this.#options;
    step("network.committed");
    const row = this.#store.get(id);
    if (row !== undefined) await outbound.changed(id, this.#outboundPolicy(row));
    step("network.obeyed");
  }

  /** Throws as `policy`. */
  async view(teamId: string, id: string): Promise<NetworkView> {
    const { outbound, counters, decisions, rules } = this.#options;
    this.policy(teamId, id);
    const [state, isUnsupported] = await Promise.all([outbound.state(id), this.#isUnsupported(id)]);
    const policy = this.policy(teamId, id); // it may be another one by now, or gone
    const effective = effectivePolicy(policy, rules);
    return {
      ...{ ...state, policy, counters: counters.of(id), recent: decisions.of(id) },
      effective: { ...effective, deny: [...new Set([...effective.deny, ...rules.deny])] },
      isUnsupported,
    };
  }

  /** False also where the guest is not known yet. */
  async #isUnsupported(id: string): Promise<boolean> {
    const { host, runs } = this.#options;
    const guest = runs.guest(id);
    if (guest !== undefined) return guest.networkSocket === null;
    return this.#store.get(id)?.status === "paused" && !(await host.hasNetwork(id));
  }

  #outboundPolicy({ id, network }: Capsule): OutboundPolicy {
    const policy = decodePolicy(network);
    const effective = effectivePolicy(policy, this.#options.rules);
    if (policy === undefined || policy.inject.length === 0 || effective.egress === "none") return effective;
    return { ...effective, inject: this.#options.injectValues.open(id, policy.inject) };
  }

  /**
   * As `parseNetwork`, by the operator's rules, and `parseInject`. `id`: of the capsule whose stored values stay where null is given;
   * undefined: of a new one.
   */
  parse(value: unknown, limits: PolicyLimits & InjectLimits, id?: string): GivenNetwork {
    const given = Object(value ?? {}) as { inject?: unknown };
    const { rules: inject, values: injected } = parseInject(given.inject ?? [], limits);
    const network = { ...parseNetwork(value, limits, this.#options.rules), inject };
    this.#options.injectValues.require(id, injected);
    return { network, injected };
  }

  /** Stores the values of a network's headers. Call it in the transaction that writes the network. */
  keepInjected(id: string, values: readonly InjectValue[]): void {
    this.#options.injectValues.keep(id, values);
  }

  /** The rules of a capsule of any team; undefined: there is none, or it is being destroyed. No port of one whose policy cannot be read is public. */
  access(id: string): PortAccess | undefined {
    const row = this.#rows.access(id);
    return row === undefined ? undefined : portAccessOf(row);
  }

  /** Throws CapsuleError("not_found"), and another error where the row's cannot be read. */
  policy(teamId: string, id: string): NetworkPolicy {
    const policy = decodePolicy(this.#store.require(teamId, id).network);
    if (policy === undefined) throw new Error(`the network of capsule ${id} cannot be read`);
    return policy;
  }

  /** The secret that tokens are signed under. The first call makes it. Throws CapsuleError("not_found"). */
  secret(teamId: string, id: string): Buffer {
    this.#store.require(teamId, id);
    const known = this.access(id)?.secret;
    if (known) return known;
    const made = newPortSecret();
    this.#rows.makeSecret(id, made); // nothing, if another process has made one meanwhile
    this.changed(id);
    return this.access(id)?.secret ?? made;
  }

  /** No token that was made before opens a port after this. Throws CapsuleError("not_found"). */
  renewSecret(teamId: string, id: string): void {
    this.#store.require(teamId, id);
    this.#rows.renewSecret(id, newPortSecret());
    this.changed(id);
  }

  /** Calls `listener` after each change of what `access` tells, until the returned function is called. It must not throw. */
  onChange(id: string, listener: () => void): () => void {
    this.#emitter.on(id, listener);
    return () => this.#emitter.off(id, listener);
  }

  /** To be called after a change of the row's network. */
  changed(id: string): void {
    this.#emitter.emit(id);
  }
}

export function portAccessOf(row: Pick<Capsule, "teamId" | "network"> & { secret: Uint8Array | null }): PortAccess {
  const { publicPorts, hostHeader } = decodePolicy(row.network) ?? noNetwork;
  const secret = row.secret === null ? null : Buffer.from(row.secret);
  return { teamId: row.teamId, publicPorts, hostHeader, secret };
}
