/**
 * The state machine of a capsule: what may happen, as data. Which status a client's wish needs is in
 * ../wire/requirements.ts; how it happens, in transitions.ts; who goes first, in locks.ts.
 *
 *            ┌─────────┐  begin   ┌──────────┐  ready   ┌─────────┐  pause   ┌────────┐
 *  create ──►│ pending ├─────────►│ starting ├─────────►│ running ├─────────►│ paused │
 *            └────┬────┘          └────┬─────┘          │         │◄─────────┤        │
 *                 │ fail               │ fail           └┬───┬───┬┘  resume  └────────┘
 *                 ▼                    ▼            fail │   │   │ capture: a template is made, the capsule is gone
 *            ┌─────────┐◄────────────────────────────────┘   │ halt
 *            │  error  │                              ┌──────▼──┐
 *            └─────────┘                              │ stopped │        destroy: from every state, the capsule is gone
 *                                                     └─────────┘
 *
 *  What exists in each state:
 *    pending, starting   a row with the intent `create`; soon a folder, a journal, perhaps a QEMU process
 *    running             a folder with a disk layer, a QEMU process, a connection to the agent
 *    paused              a folder with a disk layer and a checkpoint; no process, but for the moment in which it ends
 *    stopped             a folder with a disk layer; the guest powered itself off; no process
 *    error               a row with a reason, perhaps a folder; no process
 */
import type { CapsuleStatus } from "../wire/capsule.ts";
import { CapsuleError } from "../wire/errors.ts";
import { type Action, cannot, refusal, requires } from "../wire/requirements.ts";

export type Status = CapsuleStatus;

export type Trigger = "begin" | "ready" | "pause" | "resume" | "halt" | "fail" | "capture" | "destroy";

/** What is being done to a capsule; stands in its row while it is. */
export type Intent = "create" | "pause" | "resume" | "capture" | "destroy";

/** Status × trigger → the status after it; "gone": the capsule exists no more. */
export const transitionTable = {
  pending: { begin: "starting", fail: "error", destroy: "gone" },
  starting: { ready: "running", fail: "error", destroy: "gone" },
  running: { pause: "paused", capture: "gone", halt: "stopped", fail: "error", destroy: "gone" },
  paused: { resume: "running", destroy: "gone" },
  stopped: { destroy: "gone" },
  error: { destroy: "gone" },
} as const satisfies Record<Status, Partial<Record<Trigger, Status | "gone">>>;

export const statuses = Object.keys(transitionTable) as Status[];

/** Where a trigger leads. No such arrow is a bug of ours, not of the client's. */
export function next(status: Status, trigger: Trigger): Status | "gone" {
  const after = (transitionTable[status] as Partial<Record<Trigger, Status | "gone">>)[trigger];
  if (after === undefined) throw new Error(`a ${status} capsule has no way to ${trigger}`);
  return after;
}

const underWay: Record<Intent, string> = {
  create: "created",
  pause: "paused",
  resume: "resumed",
  capture: "captured into a template",
  destroy: "destroyed",
};

/**
 * Throws CapsuleError("invalid_state") unless `action` is allowed in `status`. While a change is under way the capsule
 * counts as not being in the status that it is leaving.
 */
export function allow(action: Action, id: string, status: Status, intent: Intent | null): void {
  const required = requires[action];
  const refused = refusal(action, id, status);
  if (refused !== undefined) throw new CapsuleError("invalid_state", refused, { details: { status, required } });
  if (required !== null && intent !== null) {
    throw new CapsuleError("invalid_state", `${cannot(action, id)}: it is being ${underWay[intent]}`, {
      details: { status, required, intent },
    });
  }
}

/** Statuses that a capsule can leave only by being destroyed. */
export function isFinal(status: Status): boolean {
  return Object.keys(transitionTable[status]).every((trigger) => trigger === "destroy");
}
