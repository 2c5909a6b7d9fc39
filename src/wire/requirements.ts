/**
 * Which status a capsule must have for what a client asks of it, and the sentence that refuses it otherwise. The server
 * throws by this table and the dashboard disables by it, so that both say the same.
 */
import type { CapsuleStatus } from "./capsule.ts";

/** What a client may ask of a capsule → the status it must have; null: any. */
export const requires = {
  exec: "running",
  processes: "running",
  pty: "running",
  files: "running",
  ping: "running",
  pause: "running",
  snapshot: "running",
  resume: "paused",
  destroy: null,
  read: null,
} as const satisfies Record<string, CapsuleStatus | null>;

export type Action = keyof typeof requires;

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
};

/** Why `action` is not allowed in `status`, as a sentence that begins with a small letter; undefined: it is allowed. */
export function refusal(action: Action, id: string, status: CapsuleStatus): string | undefined {
  const required = requires[action];
  if (required === null || status === required) return undefined;
  return `${cannot(action, id)}: it is ${status}, not ${required}`;
}

/** The beginning of every refusal. */
export function cannot(action: Action, id: string): string {
  return `cannot ${verbs[action]} capsule ${id}`;
}
