/** The rules of access to the ports of capsules, and the secrets under which tokens for them are signed. */
import { EventEmitter } from "node:events";
import type { PortRows } from "../db/port-rows.ts";
import type { NetworkRules } from "../network/grants.ts";
import { decodePolicy, type NetworkPolicy, noNetwork, type PolicyLimits, parseNetwork } from "../network/policy.ts";
import { newPortSecret } from "../network/port-tokens.ts";
import type { CapsuleStore } from "./store.ts";

export interface PortAccess {
  teamId: string;
  publicPorts: readonly number[];
  /** As in NetworkPolicy. */
  hostHeader: string | null;
  /** null: none was made yet, and so no token. */
  secret: Buffer | null;
}

export class Networks {
  readonly #rows: PortRows;
  readonly #store: Pick<CapsuleStore, "require">;
  readonly #rules: NetworkRules;
  readonly #emitter = new EventEmitter().setMaxListeners(0);

  constructor(rows: PortRows, store: Pick<CapsuleStore, "require">, rules: NetworkRules) {
    this.#rows = rows;
    this.#store = store;
    this.#rules = rules;
  }

  /** As `parseNetwork`, by the operator's rules. */
  parse(value: unknown, limits: PolicyLimits): NetworkPolicy {
    return parseNetwork(value, limits, this.#rules);
  }

  /** The rules of a capsule of any team; undefined: there is none, or it is being destroyed. No port of one whose policy cannot be read is public. */
  access(id: string): PortAccess | undefined {
    const row = this.#rows.access(id);
    if (row === undefined) return undefined;
    const { publicPorts, hostHeader } = decodePolicy(row.network) ?? noNetwork;
    return {
      teamId: row.teamId,
      publicPorts,
      hostHeader,
      secret: row.secret === null ? null : Buffer.from(row.secret),
    };
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
