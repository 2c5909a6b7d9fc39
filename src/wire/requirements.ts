/**
 * The status that each action needs, and the sentence that refuses it otherwise. The server and the dashboard use the
 * same table, so that both give the same reason.
 */
import type { CapsuleStatus } from "./capsule.ts";

/**
 * Action → the status that the capsule must have; `resumable`: it must run, or be one that a request may resume, which no
 * capsule is today; null: any.
 */
export const requires = {
  exec: "resumable",
  processes: "resumable",
  pty: "resumable",
  files: "resumable",
  ping: "running",
  pause: "running",
  snapshot: "running",
  resume: "paused",
  destroy: null,
  read: null,
  update: null,
} as const satisfies Record<string, CapsuleStatus | "resumable" | null>;

export type Action = keyof typeof requires;

/** Actions that use a running capsule's guest. They wait for one that the server has not adopted yet after its start. */
export const guestActions: ReadonlySet<Action> = new Set(["exec", "processes", "pty", "files", "pause", "snapshot"]);

const verbs: Record<Action, string> = {
  exec: "run a command in",
  processes: "reach the processes of",
  pty: "open a terminal in",
  files: "reach the files of",
  ping: "ping",
  pause: "pause",
  snapshot: "capture",
  resume: "resume",
  destroy: "destroy",
  read: "read",
  update: "change",
};

/** The status that a capsule must have for `action`; null: any. */
export function requiredStatus(action: Action): CapsuleStatus | null {
  const required = requires[action];
  return required === "resumable" ? "running" : required;
}

/** The reason why `action` is not allowed in `status`, in lower case; undefined: it is allowed. */
export function refusal(action: Action, id: string, status: CapsuleStatus): string | undefined {
  const required = requiredStatus(action);
  if (required === null || status === required) return undefined;
  return `${cannot(action, id)}: it is ${status}, not ${required}`;
}

/** The first words of every refusal. */
export function cannot(action: Action, id: string): string {
  return `cannot ${verbs[action]} capsule ${id}`;
}
