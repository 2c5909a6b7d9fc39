/**
 * The state machine of a capsule as data. Which status a client's action requires stands in ../wire/requirements.ts, the
 * work behind each arrow in transitions.ts, and the order of changes in locks.ts.
 *
 *              ┌──────────┐  ready   ┌─────────┐  pause   ┌────────┐
 *   create ───►│ starting ├─────────►│ running ├─────────►│ paused │
 *              │          │◄─────────┤         │◄─────────┤        │
 *              └────┬─────┘  reset   └┬─▲─┬─▲─┬┘  resume  └────────┘
 *                   │ fail       fail │ │ │ │ │ capture: a template is made and the capsule is gone
 *                   ▼                 │ │ │ │
 *              ┌─────────┐◄───────────┘ │ │ │ start
 *              │  error  ├──────────────┘ ▼ │
 *              └─────────┘  start    ┌──────┴──┐
 *                      stop or halt: │ stopped │        destroy: from every status, the capsule is gone
 *                                    └─────────┘
 *
 *  The parts of a capsule in each status:
 *    starting   a row with the intent `create`; soon a folder, a journal, perhaps a QEMU process. With the intent `reboot`:
 *               a folder with the disk layer of a guest that has reset itself, perhaps a QEMU process
 *    running    a folder with a disk layer, a QEMU process, a connection to the agent
 *    paused     a folder with a disk layer and a checkpoint; no process, once the one that wrote it has ended
 *    stopped    a folder with a disk layer; no process
 *    error      a row with a reason; a folder with a disk layer if it ever ran; no process
 *
 *  The wire also knows `pending`, which this server never answers: a create inserts its row as `starting`.
 */
import type { CapsuleStatus } from "../wire/capsule.ts";
import { CapsuleError } from "../wire/errors.ts";
import { type Action, cannot, refusal, requiredStatuses } from "../wire/requirements.ts";

export type Status = Exclude<CapsuleStatus, "pending">;

/** `halt`: the guest powered itself off; `reset`: it reset itself, or its kernel panicked. */
export type Trigger =
  | "ready"
  | "pause"
  | "resume"
  | "stop"
  | "start"
  | "halt"
  | "reset"
  | "fail"
  | "capture"
  | "destroy";

/** The change under way, kept in the capsule's row from before the work begins until its result is committed. */
export type Intent = "create" | "pause" | "resume" | "stop" | "start" | "reboot" | "capture" | "destroy";

/** Status × trigger → the next status; "gone": the capsule no longer exists. */
export const transitionTable = {
  starting: { ready: "running", fail: "error", destroy: "gone" },
  running: {
    ...{ pause: "paused", capture: "gone", stop: "stopped", destroy: "gone" },
    ...{ halt: "stopped", reset: "starting", fail: "error" },
  },
  paused: { resume: "running", destroy: "gone" },
  stopped: { start: "running", destroy: "gone" },
  error: { start: "running", destroy: "gone" },
} as const satisfies Record<Status, Partial<Record<Trigger, Status | "gone">>>;

export const statuses = Object.keys(transitionTable) as Status[];

/** The status after `trigger`. Throws where the table has no arrow, which is a bug of the server. */
export function next(status: Status, trigger: Trigger): Status | "gone" {
  const after = (transitionTable[status] as Partial<Record<Trigger, Status | "gone">>)[trigger];
  if (after === undefined) throw new Error(`a ${status} capsule has no way to ${trigger}`);
  return after;
}

export const participles: Record<Intent, string> = {
  create: "created",
  pause: "paused",
  resume: "resumed",
  stop: "stopped",
  start: "started",
  reboot: "rebooted",
  capture: "captured into a template",
  destroy: "destroyed",
};

/**
 * Throws CapsuleError("invalid_state") unless `action` is allowed in `status`. A capsule with an intent counts as having
 * left its status already.
 */
export function allow(action: Action, id: string, status: Status, intent: Intent | null): void {
  const required = requiredStatuses(action)?.[0] ?? null;
  const refused = refusal(action, id, status);
  if (refused !== undefined) throw new CapsuleError("invalid_state", refused, { details: { status, required } });
  if (required !== null && intent !== null) {
    throw new CapsuleError("invalid_state", `${cannot(action, id)}: it is being ${participles[intent]}`, {
      details: { status, required, intent },
    });
  }
}

/** As `allow`, of a capsule that is moved from one host of a cluster to another: what needs it running is "unavailable" until it runs again. */
export function allowOnTheWay(action: Action, id: string, status: Status, intent: Intent | null): void {
  try {
    allow(action, id, status, intent);
  } catch (error) {
    throw error instanceof CapsuleError && error.code === "invalid_state" ? onTheWay(id, error) : error;
  }
}

export function onTheWay(id: string, cause?: unknown): CapsuleError {
  const message = `capsule ${id} is being moved to another host, where it runs on; repeat the request`;
  return new CapsuleError("unavailable", message, { cause, retryAfterSec: 1 });
}

/** Statuses in which a capsule has a VM or is being given one. */
export const live: Status[] = ["starting", "running"];

/** Statuses without a VM, in which a retention counts. */
export const retained: Status[] = ["paused", "stopped", "error"];

/** Intents of capsules that are being given a VM and keep their status until they have it. */
export const reviving: Intent[] = ["resume", "start"];

/** Whether the capsule has a VM, or is being given one. */
export function isLive({ status, intent }: { status: Status; intent: Intent | null }): boolean {
  return live.includes(status) || (intent !== null && reviving.includes(intent));
}

/** Statuses in which a capsule has ended: it runs again only after a start. */
export function isFinal(status: Status): boolean {
  return status === "stopped" || status === "error";
}
