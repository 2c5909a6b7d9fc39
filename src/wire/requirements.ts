/**
 * The status that each action needs, and the sentence that refuses it otherwise. The server and the dashboard use the
 * same table, so that both give the same reason.
 */
import type { CapsuleStatus } from "./capsule.ts";

/**
 * Action → the status that the capsule must have; `resumable`: it must run, or have `auto_resume` and be paused, in which case the
 * action waits for its resume; `startable`: it has ended, and has a disk; null: any.
 */
export const requires = {
  exec: "resumable",
  processes: "resumable",
  pty: "resumable",
  files: "resumable",
  ports: "resumable",
  portList: "running",
  ping: "running",
  pause: "running",
  snapshot: "running",
  resume: "paused",
  stop: "running",
  start: "startable",
  destroy: null,
  read: null,
  update: null,
} as const satisfies Record<string, CapsuleStatus | "resumable" | "startable" | null>;

export type Action = keyof typeof requires;

/** Actions that use a running capsule's guest. They wait for one that the server has not adopted yet after its start. */
export const guestActions: ReadonlySet<Action> = new Set([
  "exec",
  "processes",
  "pty",
  "files",
  "ports",
  "portList",
  "pause",
  "stop",
  "snapshot",
]);

const verbs: Record<Action, string> = {
  exec: "run a command in",
  processes: "reach the processes of",
  pty: "open a terminal in",
  files: "reach the files of",
  ports: "reach the ports of",
  portList: "list the ports of",
  ping: "ping",
  pause: "pause",
  snapshot: "capture",
  resume: "resume",
  stop: "stop",
  start: "start",
  destroy: "destroy",
  read: "read",
  update: "change",
};

/** The statuses of which a capsule must have one for `action`; null: any. */
export function requiredStatuses(action: Action): readonly [CapsuleStatus, ...CapsuleStatus[]] | null {
  const required = requires[action];
  if (required === null) return null;
  if (required === "startable") return ["stopped", "error"];
  return [required === "resumable" ? "running" : required];
}

/** The reason why `action` is not allowed in `status`, in lower case; undefined: it is allowed. */
export function refusal(action: Action, id: string, status: CapsuleStatus): string | undefined {
  const required = requiredStatuses(action);
  if (required === null || required.includes(status)) return undefined;
  return `${cannot(action, id)}: it is ${status}, not ${required.join(" or ")}`;
}

/** The first words of every refusal. */
export function cannot(action: Action, id: string): string {
  return `cannot ${verbs[action]} capsule ${id}`;
}
