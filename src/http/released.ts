/**
 * Capsules that no host holds: their rows are in the cluster's database, and their checkpoints in its bucket. A request is answered from
 * the row, refused by it, or waits until a host has acquired the capsule, and goes there. A service on one host has none of them.
 */
import type { FastifyRequest } from "fastify";
import type { CapsuleView, PortAccess } from "../capsules/capsules.ts";
import type { Capsule } from "../capsules/store.ts";
import type { CapsuleStatus } from "../wire/capsule.ts";
import type { Action } from "../wire/requirements.ts";

export interface ReleasedCapsule {
  id: string;
  teamId: string;
  /** That of its last holder: an acquire raises it. */
  epoch: number;
  /** The host whose checkpoint it is. */
  lastHost: string | null;
  row: Capsule;
  /** As its team sees it. */
  view: CapsuleView;
  /** The rules of access to its ports. */
  portAccess: PortAccess;
  /** It was running, and runs again as soon as a host has acquired it; default: no. */
  isMoving?: boolean;
  /** The host that holds it all the same, and cannot be reached; `isLost`: its row says what became of it. */
  holder?: { name: string; isLost: boolean };
  /** Under which URLs of its files are signed; null: none was made. */
  urlSecret: Uint8Array | null;
}

/**
 * - `row`: nothing but the row.
 * - `held`: that a host holds it.
 * - `resume`: that a host holds it which may give it a VM at once: the team's quotas are counted with the acquire.
 * - `wake`: the same, where the service resumes it by itself for the request.
 * - `move`: the same, for a capsule that its last host moves: the host that holds it then resumes it by itself.
 */
export type Need = "row" | "held" | "resume" | "wake" | "move";

/** The acquires of one cluster. */
export interface ReleasedCapsules {
  /** Throws what a holder's own checks would refuse, in the same words. `mayResume`: as of Capsules.admit. */
  needOf(capsule: ReleasedCapsule, action: Action, mayResume: boolean): Need;
  /** Hosts in the order in which they are asked to acquire it; null is this one. */
  hostsFor(capsule: ReleasedCapsule): (string | null)[];
  /**
   * Resolves when this host holds the capsule; false: another one does by now, or it is gone. Calls for one capsule share the work, which
   * goes on when their clients leave. `onBegin`: called when this host has read that it is released. Rejects with the refusal, and then no
   * host holds the capsule, or this one, which has not been able to tell the database yet.
   */
  acquire(of: { id: string; need: Need; onBegin?: () => void }): Promise<boolean>;
  /**
   * Resolves when its row has `status`, cannot reach it any more, or `timeoutMs` is over, with the capsule as lists show it then; no host
   * acquires it for that. Rejects with "not_found" or "unavailable".
   */
  wait(capsule: ReleasedCapsule, status: CapsuleStatus, timeoutMs: number, signal: AbortSignal): Promise<CapsuleView>;
  /** Whether this host has released it since it was here, as opposed to destroyed. */
  hasLeft(id: string): boolean;
  /** Rejects as Capsules.destroy. */
  destroy(capsule: ReleasedCapsule): Promise<void>;
}

const answered = new WeakMap<FastifyRequest, ReleasedCapsule>();

/** The request is answered, or refused, from this capsule's row; undefined: no more. */
export function answerFromRow(request: FastifyRequest, capsule: ReleasedCapsule | undefined): void {
  if (capsule === undefined) answered.delete(request);
  else answered.set(request, capsule);
}

/** The capsule whose row answers the request; undefined: a host holds it, or there is none. */
export function releasedOf(request: FastifyRequest): ReleasedCapsule | undefined {
  return answered.get(request);
}
