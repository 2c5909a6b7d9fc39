/** The entries of the audit log as the page shows them: pages joined, tickets folded into what they opened, filtered. */
import type { Static } from "typebox";
import type { AuditAction, AuditEntry } from "../../src/wire/audit.ts";

export type Entry = Static<typeof AuditEntry>;

/** An entry, and whether a ticket for it was made just before. */
export interface Shown {
  entry: Entry;
  hasTicket: boolean;
}

export const outcomes = ["started", "done", "aborted", "refused", "failed"] as const;
export type Outcome = (typeof outcomes)[number];

/** Empty: any. */
export interface AuditFilter {
  action: string;
  key: string;
  outcome: string;
}

const clientClosed = 499;
/** A ticket can be used for this long. */
const ticketMs = 30_000;

export function outcomeOf({ status, exit_code }: Pick<Entry, "status" | "exit_code">): Outcome {
  if (status < 200) return exit_code === null ? "started" : "done";
  if (status < 400) return "done";
  if (status === clientClosed) return "aborted";
  return status < 500 ? "refused" : "failed";
}

/**
 * Newer entries before known ones, each once, as it was read last: a command's gets its exit code later. A gap between the two
 * cannot be filled: then the known ones are dropped.
 */
export function joined(newest: readonly Entry[], known: readonly Entry[]): { entries: Entry[]; hasGap: boolean } {
  const last = known[0];
  const isNewer = (entry: Entry) => last === undefined || Number(entry.id) > Number(last.id);
  const fresh = newest.filter(isNewer);
  const hasGap = last !== undefined && fresh.length > 0 && fresh.length === newest.length;
  const latest = new Map(newest.map((entry) => [entry.id, entry]));
  const kept = known.map((entry) => latest.get(entry.id) ?? entry);
  return { entries: hasGap ? [...newest] : [...fresh, ...kept], hasGap };
}

/** Action and capsule of the entry that a ticket for this path leads to. */
function openedBy(path: string): { action: AuditAction; capsule: string } | undefined {
  const [, capsule, rest = ""] = /^\/v1\/capsules\/([^/]+)\/(.+)$/.exec(path) ?? [];
  if (capsule === undefined) return undefined;
  const actions: readonly [RegExp, AuditAction][] = [
    [/^exec\/stream$/, "exec"],
    [/^pty$/, "pty"],
    [/^processes\/[^/]+\/stream$/, "process.attach"],
    [/^files\/watch$/, "file.watch"],
    [/^ports\/\d+\/tcp$/, "port.connect"],
  ];
  const action = actions.find(([pattern]) => pattern.test(rest))?.[1];
  return action && { action, capsule };
}

/** Each ticket goes with the first entry after it that it can have opened. Both lists are newest first. */
export function folded(entries: readonly Entry[]): Shown[] {
  const waiting: Shown[] = [];
  const shown: Shown[] = [];
  for (const entry of entries) {
    const opened = entry.action === "ticket.create" && entry.status < 400 ? openedBy(entry.subject ?? "") : undefined;
    const place = opened === undefined ? -1 : waiting.findLastIndex((other) => fits(other.entry, entry, opened));
    if (place >= 0) {
      waiting[place]!.hasTicket = true;
      waiting.splice(place, 1);
      continue;
    }
    const item = { entry, hasTicket: false };
    shown.push(item);
    waiting.push(item);
    while (Date.parse(waiting[0]!.entry.at) - Date.parse(entry.at) > ticketMs) waiting.shift();
  }
  return shown;
}

function fits(later: Entry, ticket: Entry, { action, capsule }: { action: AuditAction; capsule: string }): boolean {
  const isSoon = Date.parse(later.at) - Date.parse(ticket.at) <= ticketMs;
  return isSoon && later.action === action && later.capsule_id === capsule && later.key_id === ticket.key_id;
}

/** `action`: one of the actions, or an area: the part before its dot. */
export function filtered(shown: readonly Shown[], { action, key, outcome }: AuditFilter): Shown[] {
  return shown.filter(
    ({ entry }) =>
      (action === "" || entry.action === action || entry.action.split(".")[0] === action) &&
      (key === "" || nameOfKey(entry) === key) &&
      (outcome === "" || outcomeOf(entry) === outcome),
  );
}

export function nameOfKey({ key_name, key_id }: Entry): string {
  return key_name || key_id || "the service";
}
