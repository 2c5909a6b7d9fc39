/**
 * The last decisions about running capsules' connections and names: kept in memory and written without an fsync, so that they outlive
 * the relay and the server. The row of a run that began under an earlier server is read when it is asked for or added to.
 */
import { setImmediate as nextTurn } from "node:timers/promises";
import type { DecisionRows, WrittenDecisions } from "../db/decision-rows.ts";
import { RecentDecisions } from "../network/recent-decisions.ts";
import { readDecision } from "../network/untrusted.ts";
import type { NetworkDecision } from "../wire/network.ts";

/** Text of one transaction: some milliseconds. */
const partBytes = 256 << 10;
/** Text of one call of flushInParts. */
const passBytes = 1 << 20;
/** A row without its text. */
const rowBytes = 100;

interface Run {
  startedAt: number;
  /** Undefined: not read yet. */
  recent: RecentDecisions | undefined;
}

export class NetworkDecisions {
  readonly #rows: DecisionRows;
  readonly #runs = new Map<string, Run>();
  /** The longest wait first; of a capsule without a run the row is removed. */
  readonly #unwritten = new Set<string>();
  #isWriting = false;

  constructor(rows: DecisionRows) {
    this.#rows = rows;
  }

  /** Forgets those of runs that have ended. Call before the first run. */
  open(): void {
    this.#rows.removeEnded();
  }

  /** `startedAt` tells the run from others of the capsule; `isAdopted`: it began under an earlier server. */
  began(id: string, startedAt: number, isAdopted: boolean): void {
    this.#runs.set(id, { startedAt, recent: isAdopted ? undefined : new RecentDecisions() });
  }

  ended(id: string): void {
    const run = this.#runs.get(id);
    this.#runs.delete(id);
    if (run !== undefined && run.recent?.size !== 0) this.#unwritten.add(id);
  }

  /** Oldest first. Nothing where the capsule has no run. */
  add(id: string, decided: readonly NetworkDecision[]): void {
    const recent = this.#recentOf(id);
    if (recent === undefined || decided.length === 0) return;
    for (const decision of decided) recent.add(decision);
    this.#unwritten.add(id);
  }

  /** The decisions of the capsule's run, oldest first. */
  of(id: string): NetworkDecision[] {
    return this.#recentOf(id)?.list() ?? [];
  }

  /** Writes all: for the end of the service. */
  flush(): void {
    while (this.#unwritten.size > 0) this.#writePart();
  }

  /** Writes those that have waited longest, 1 MiB at most, in parts, unless an earlier call still does. Rejects when a part cannot be written; it stays unwritten. */
  async flushInParts(): Promise<void> {
    if (this.#isWriting) return;
    this.#isWriting = true;
    try {
      for (let bytes = 0; bytes < passBytes && this.#unwritten.size > 0; ) {
        if (bytes > 0) await nextTurn();
        bytes += this.#writePart();
      }
    } finally {
      this.#isWriting = false;
    }
  }

  #recentOf(id: string): RecentDecisions | undefined {
    const run = this.#runs.get(id);
    if (run === undefined || run.recent !== undefined) return run?.recent;
    run.recent = new RecentDecisions();
    for (const decision of decisionsIn(this.#rows.of(id, run.startedAt))) run.recent.add(decision);
    return run.recent;
  }

  /** The bytes that were written. */
  #writePart(): number {
    const part: WrittenDecisions[] = [];
    let bytes = 0;
    for (const id of this.#unwritten) {
      const run = this.#runs.get(id);
      const isKept = run?.recent !== undefined && run.recent.size > 0;
      const decisions = isKept ? JSON.stringify(run.recent?.list()) : undefined;
      part.push({ id, startedAt: run?.startedAt ?? 0, decisions });
      bytes += rowBytes + (decisions?.length ?? 0);
      if (bytes >= partBytes) break;
    }
    this.#rows.write(part);
    for (const { id } of part) this.#unwritten.delete(id);
    return bytes;
  }
}

/** None where the text cannot be read. */
function decisionsIn(text = "[]"): NetworkDecision[] {
  try {
    const read = JSON.parse(text) as unknown[];
    return read.map(readDecision).filter((decision) => decision !== undefined);
  } catch {
    return [];
  }
}
