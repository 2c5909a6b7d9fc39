/**
 * The state machine of a capsule as data. Which status a client's action requires stands in ../wire/requirements.ts, the
 * work behind each arrow in transitions.ts, and the order of changes in locks.ts.
 *
 *              ┌──────────┐  ready   ┌─────────┐  pause   ┌────────┐
 *   create ───►│ starting ├─────────►│ running ├─────────►│ paused │
 *              └────┬─────┘          │         │◄─────────┤        │
 *                   │ fail           └┬───┬───┬┘  resume  └────────┘
 *                   ▼            fail │   │   │ capture: a template is made and the capsule is gone
 *              ┌─────────┐◄───────────┘   │ halt
 *              │  error  │         ┌──────▼──┐
 *              └─────────┘         │ stopped │        destroy: from every status, the capsule is gone
 *                                  └─────────┘
 *
 *  The parts of a capsule in each status:
 *    starting   a row with the intent `create`; soon a folder, a journal, perhaps a QEMU process
 *    running    a folder with a disk layer, a QEMU process, a connection to the agent
 *    paused     a folder with a disk layer and a checkpoint; no process, once the one that wrote it has ended
 *    stopped    a folder with a disk layer; the guest powered itself off; no process
 *    error      a row with a reason, perhaps a folder; no process
 *
 *  The wire also knows `pending`, which this server never answers: a create inserts its row as `starting`.
 */
import type { CapsuleStatus } from "../wire/capsule.ts";
import { CapsuleError } from "../wire/errors.ts";
import { type Action, cannot, refusal, requiredStatus } from "../wire/requirements.ts";

export type Status = Exclude<CapsuleStatus, "pending">;

export type Trigger = "ready" | "pause" | "resume" | "halt" | "fail" | "capture" | "destroy";

/** The change under way, kept in the capsule's row from before the work begins until its result is committed. */
export type Intent = "create" | "pause" | "resume" | "capture" | "destroy";

/** Status × trigger → the next status; "gone": the capsule no longer exists. */
export const transitionTable = {
  starting: { ready: "running", fail: "error", destroy: "gone" },
  running: { pause: "paused", capture: "gone", halt: "stopped", fail: "error", destroy: "gone" },
  paused: { resume: "running", destroy: "gone" },
  stopped: { destroy: "gone" },
  error: { destroy: "gone" },
} as const satisfies Record<Status, Partial<Record<Trigger, Status | "gone">>>;

export const statuses = Object.keys(transitionTable) as Status[];

/** The status after `trigger`. Throws where the table has no arrow, which is a bug of the server. */
export function next(status: Status, trigger: Trigger): Status | "gone" {
  const after = (transitionTable[status] as Partial<Record<Trigger, Status | "gone">>)[trigger];
  if (after === undefined) throw new Error(`a ${status} capsule has no way to ${trigger}`);
  return after;
}

const participles: Record<Intent, string> = {
  create: "created",
  pause: "paused",
  resume: "resumed",
  capture: "captured into a template",
  destroy: "destroyed",
};

/**
 * Throws CapsuleError("invalid_state") unless `action` is allowed in `status`. A capsule with an intent counts as having
 * left its status already.
 */
export function allow(action: Action, id: string, status: Status, intent: Intent | null): void {
  const required = requiredStatus(action);
  const refused = refusal(action, id, status);
  if (refused !== undefined) throw new CapsuleError("invalid_state", refused, { details: { status, required } });
  if (required !== null && intent !== null) {
    throw new CapsuleError("invalid_state", `${cannot(action, id)}: it is being ${participles[intent]}`, {
      details: { status, required, intent },
    });
  }
}

/** Statuses in which a capsule has a VM or is being given one. */
export const live: Status[] = ["starting", "running"];

/** Statuses without a VM, in which a retention counts. */
export const retained: Status[] = ["paused", "stopped", "error"];

/** Whether the capsule has a VM, or is being given one also by a resume. */
export function isLive({ status, intent }: { status: Status; intent: Intent | null }): boolean {
  return live.includes(status) || intent === "resume";
}

/** Statuses that a capsule can leave only by being destroyed. */
export function isFinal(status: Status): boolean {
  return Object.keys(transitionTable[status]).every((trigger) => trigger === "destroy");
}
