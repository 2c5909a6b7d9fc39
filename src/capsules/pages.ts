/** A team's capsules by conditions and in pages, newest first, read in turns of the event loop. */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { CapsuleStatus } from "../wire/capsule.ts";
import { labelsOf } from "./settings.ts";
import type { Capsule, CapsulePage, CapsuleStore } from "./store.ts";

/** All of them must hold. */
export interface Conditions {
  /** One of these. */
  statuses?: readonly CapsuleStatus[];
  labels?: readonly (readonly [key: string, value: string])[];
  template?: string;
  name?: string;
}

export interface Part {
  limit: number;
  /** The place in the team's sequence before which it begins. Default: the newest. */
  before?: number | undefined;
}

export interface Turn {
  rows: Capsule[];
  /** Rows that were read for them. */
  seen: number;
}

/** Bounds of one turn: rows take 10 µs each, and labels and networks 1 ms for 64 KiB. A capsule has up to 190 KiB of them. */
const turn = { rows: 200, textBytes: 64 * 1024 };

/**
 * Yields the capsules of one turn at a time, at most `limit` in all, and returns the place of the last one; undefined: no more follow.
 * The place of a capsule never changes, so that pages show none twice and leave out none that was there all the time.
 */
export async function* readPage(
  store: { page(...of: Parameters<CapsuleStore["page"]>): CapsulePage | Promise<CapsulePage> },
  teamId: string,
  conditions: Conditions,
  { limit, before = Number.MAX_SAFE_INTEGER }: Part,
): AsyncGenerator<Turn, number | undefined> {
  let [found, end, place] = [0, before, before];
  for (;;) {
    const { rows, isLast } = await store.page(teamId, place, turn);
    const matching = rows.filter((row) => matches(row, conditions));
    const shown = matching.slice(0, limit - found);
    found += shown.length;
    end = shown.at(-1)?.sequence ?? end;
    place = rows.at(-1)?.sequence ?? place;
    yield { rows: shown, seen: rows.length };
    if (shown.length < matching.length) return end;
    if (isLast) return undefined;
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
