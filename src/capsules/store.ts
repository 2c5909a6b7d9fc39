/**
 * The rows of this room, with the state machine's arrows on top: an intent is set before work begins and cleared with
 * its result, every write is compare-and-set, and whoever waits for a capsule to change is told.
 */
import { EventEmitter } from "node:events";
import type { CapsuleChange, CapsuleRow, CapsuleRows } from "../db/capsule-rows.ts";
import { CapsuleError } from "../wire/errors.ts";
import { type Intent, next, type Status, statuses, type Trigger } from "./lifecycle.ts";

/** A row whose status and intent are known to be of the state machine. */
export interface Capsule extends CapsuleRow {
  status: Status;
  intent: Intent | null;
}

/** What a team sees of a change: the capsule as it is now, undefined when it is gone for them. Must not throw. */
export type Subscriber = (teamId: string, id: string, row: Capsule | undefined) => void;

export class CapsuleStore {
  readonly #rows: CapsuleRows;
  readonly #now: () => number;
  readonly #emitter = new EventEmitter().setMaxListeners(0);
  readonly #subscribers = new Set<Subscriber>();

  constructor(rows: CapsuleRows, now: () => number) {
    this.#rows = rows;
    this.#now = now;
  }

  /** Everybody's, the ones being destroyed too. */
  all(): Capsule[] {
    return this.#rows.all() as Capsule[];
  }

  get(id: string): Capsule | undefined {
    return this.#rows.get(id) as Capsule | undefined;
  }

  /** How many there are of each status. */
  counts(): Record<Status, number> {
    const counts = Object.fromEntries(statuses.map((status) => [status, 0])) as Record<Status, number>;
    for (const [status, count] of this.#rows.counts()) counts[status as Status] = count;
    return counts;
  }

  ofTeam(teamId: string): Capsule[] {
    return (this.#rows.ofTeam(teamId) as Capsule[]).filter((row) => row.intent !== "destroy");
  }

  /** Throws the same CapsuleError("not_found") whether it never existed, is destroyed, or is another team's. */
  require(teamId: string, id: string): Capsule {
    const row = this.#rows.ofTeamById(teamId, id);
    if (row === undefined || row.intent === "destroy") throw missing(id);
    return row as Capsule;
  }

  insert(row: Capsule): boolean {
    const isNew = this.#rows.insert(row);
    if (isNew) {
      this.#notify(row.id);
      this.#publish(row.teamId, row.id, row);
    }
    return isNew;
  }

  /** Says what is about to be done. Throws when the row has moved on since it was read. */
  setIntent(row: Capsule, intent: Intent): Capsule {
    return this.#marked(row, this.#change(row, { intent }));
  }

  /**
   * The same, without waiting for the disk. For a pause or a resume: a power cut ends the VM too, and then the row says the
   * right thing without the intent.
   */
  setIntentUnsynced(row: Capsule, intent: Extract<Intent, "pause" | "resume">): Capsule {
    return this.#marked(row, this.#told(row, this.#rows.changeUnsynced(row.id, row.generation, { intent })));
  }

  /** The work succeeded: follows the trigger's arrow. Undefined when the capsule was destroyed meanwhile. */
  commit(
    row: Capsule,
    trigger: Exclude<Trigger, "destroy" | "capture">,
    also: CapsuleChange = {},
  ): Capsule | undefined {
    const status = next(row.status, trigger);
    const settled = this.#change(row, { status, intent: null, lastUpdated: this.#now(), ...also });
    if (settled !== undefined) this.#publish(row.teamId, row.id, settled);
    return settled;
  }

  /** The work failed and nothing has changed. */
  clearIntent(row: Capsule): Capsule | undefined {
    return this.#change(row, { intent: null });
  }

  /** From here on the capsule does not exist for anybody; its id is never used again. */
  beginDestroy(row: Capsule): Capsule {
    this.#rows.bury(row.id, this.#now());
    const condemned = this.setIntent(row, "destroy");
    this.publishRemoved(row);
    return condemned;
  }

  /** For a capsule that became a template: condemned in the transaction that made it. */
  publishRemoved({ teamId, id }: Capsule): void {
    this.#publish(teamId, id, undefined);
  }

  remove(id: string): void {
    this.#rows.remove(id);
    this.#notify(id);
  }

  /** Calls `listener` at each change of this capsule until the returned function is called. */
  onChange(id: string, listener: () => void): () => void {
    this.#emitter.on(id, listener);
    return () => this.#emitter.off(id, listener);
  }

  /** Calls `witness` at each change that a team can see, until the returned function is called. */
  subscribe(witness: Subscriber): () => void {
    this.#subscribers.add(witness);
    return () => this.#subscribers.delete(witness);
  }

  #change(row: Capsule, change: CapsuleChange): Capsule | undefined {
    return this.#told(row, this.#rows.change(row.id, row.generation, change));
  }

  #told({ id }: Capsule, changed: CapsuleRow | undefined): Capsule | undefined {
    if (changed !== undefined) this.#notify(id);
    return changed as Capsule | undefined;
  }

  #marked({ id }: Capsule, marked: Capsule | undefined): Capsule {
    if (marked === undefined) throw new Error(`capsule ${id} moved on unseen`);
    return marked;
  }

  #notify(id: string): void {
    this.#emitter.emit(id);
  }

  #publish(teamId: string, id: string, row: Capsule | undefined): void {
    for (const witness of this.#subscribers) witness(teamId, id, row);
  }
}

export function missing(id: string): CapsuleError {
  return new CapsuleError("not_found", `there is no capsule ${id}`);
}
