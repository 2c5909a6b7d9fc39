/** A capsule as its team sees it. */
import { decodePolicy, type NetworkPolicy, noNetwork } from "../network/policy.ts";
import { type Labels, labelsOf } from "./settings.ts";
import type { Capsule } from "./store.ts";

/** Times are epoch milliseconds. */
export type CapsuleView = Readonly<
  Omit<Capsule, "teamId" | "revision" | "intent" | "storage" | "blockedBy" | "labels" | "autoResume" | "network"> & {
    /** None where the row's cannot be read. */
    labels: Labels;
    autoResume: boolean;
    /** Where the row's cannot be read, that of a capsule that asked for nothing. */
    network: NetworkPolicy;
    /** Where another host holds it, or none; undefined: this one. */
    host?: string | null;
  }
>;

/** `lastActiveAt`: later than the row's. */
export function viewOf(row: Capsule, lastActiveAt: number | undefined): CapsuleView {
  const { teamId: _team, revision: _revision, intent: _intent, storage: _storage, blockedBy: _by, ...view } = row;
  const expiresAt = row.status === "running" ? row.expiresAt : null; // a guest that reboots keeps the row's
  return {
    ...{ ...view, expiresAt, labels: labelsOf(row), autoResume: row.autoResume !== 0 },
    network: decodePolicy(row.network) ?? noNetwork,
    lastActiveAt: lastActiveAt ?? row.lastActiveAt,
  };
}

/** A part of a list that is made in one turn of the event loop. */
export interface ViewTurn {
  items: CapsuleView[];
  /** Rows that were read for them. */
  seen: number;
}
