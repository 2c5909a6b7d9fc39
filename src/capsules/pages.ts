/** A team's capsules by conditions and in pages, newest first, read in turns of the event loop. */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { CapsuleStatus } from "../wire/capsule.ts";
import { labelsOf } from "./settings.ts";
import type { Capsule, CapsuleStore } from "./store.ts";

/** All of them must hold. */
export interface Conditions {
  /** One of these. */
  statuses?: readonly CapsuleStatus[];
  labels?: readonly (readonly [key: string, value: string])[];
  template?: string;
  name?: string;
}

export interface Page {
  rows: Capsule[];
  /** The place of its last row in the team's sequence; undefined: no more follow. */
  end: number | undefined;
  /** Rows that were read for it. */
  seen: number;
}

/** Rows that one turn reads; some 2 ms. */
const rowsPerTurn = 200;

/**
 * At most `limit` capsules from before the place `before`. The place of a capsule never changes, so that pages show none twice and leave
 * out none that was there all the time.
 */
export async function readPage(
  store: Pick<CapsuleStore, "page">,
  teamId: string,
  conditions: Conditions,
  { limit, before = Number.MAX_SAFE_INTEGER }: { limit: number; before?: number | undefined },
): Promise<Page> {
  const rows: Capsule[] = [];
  let [end, place, seen] = [before, before, 0];
  for (;;) {
    const read = store.page(teamId, place, rowsPerTurn);
    seen += read.length;
    for (const row of read) {
      if (!matches(row, conditions)) continue;
      if (rows.length === limit) return { rows, end, seen };
      rows.push(row);
      end = row.sequence;
    }
    const last = read.at(-1);
    if (last === undefined || read.length < rowsPerTurn) return { rows, end: undefined, seen };
    place = last.sequence;
    await nextTurn();
  }
}

function matches(row: Capsule, { statuses, labels = [], template, name }: Conditions): boolean {
  if (row.intent === "destroy") return false;
  if (statuses !== undefined && !statuses.includes(row.status)) return false;
  if (template !== undefined && row.template !== template) return false;
  if (name !== undefined && row.name !== name) return false;
  if (labels.length === 0) return true;
  const has = labelsOf(row);
  return labels.every(([key, value]) => Object.hasOwn(has, key) && has[key] === value);
}
