/** A host that is drained, as its operator waits for it. */
import { setTimeout as delay } from "node:timers/promises";
import { drainHost, type HeldCapsule, heldBy } from "../cluster/host-list.ts";
import type { Postgres } from "../cluster/postgres.ts";

export const drainSec = 600;
/** Capsules that are named. */
const namedMax = 1_000;
const askMs = 1_000;

export interface Drained {
  /** Capsules that the host holds, or is moving. */
  count: number;
  /** A line for each, with the reason. */
  lines: string[];
}

export interface DrainOptions {
  deadlineMs: number;
  /** Until it holds nothing, what it holds stays, or the deadline is over. */
  waits: boolean;
  hasBucket: boolean;
}

const ticks = () => performance.now();

/** Begins a drain of its own. Throws a Refusal where the host is unknown or gone. */
export async function drained(sql: Postgres, name: string, options: DrainOptions): Promise<Drained> {
  const { deadlineMs, waits, hasBucket } = options;
  const until = ticks() + deadlineMs;
  await drainHost(sql, name, deadlineMs);
  let held = await heldBy(sql, name, namedMax, hasBucket);
  while (waits && held.count > held.staying && ticks() < until) {
    await delay(Math.min(askMs, until - ticks()));
    held = await heldBy(sql, name, namedMax, hasBucket);
  }
  return { count: held.count, lines: linesOf(held, hasBucket) };
}

/** A line for each of the first capsules that a host holds, and one for the rest. */
export function linesOf({ count, first }: { count: number; first: HeldCapsule[] }, hasBucket: boolean): string[] {
  const lines = first.map((each) => `${each.id} ${reasonOf(each, hasBucket)}`);
  return count > first.length ? [...lines, `and ${count - first.length} more`] : lines;
}

/** Why a host that is drained holds a capsule. */
function reasonOf({ status, stays }: HeldCapsule, hasBucket: boolean): string {
  if (stays !== null) return `${status}: ${stays}`;
  if (status === "stopped" || status === "error") return `${status}: its disk is on this host alone`;
  if (!hasBucket) return `${status}: the cluster has no bucket, by which it could be moved`;
  return status === "paused" ? "paused: it is on its way" : `${status}: it has not been moved yet`;
}
