/**
 * Capsule rows under the state machine: an intent is set before work begins and cleared with its result, each such write
 * is compare-and-set on the row's revision, and subscribers are notified of it.
 */
import { EventEmitter } from "node:events";
import { Counts } from "../counts.ts";
import type { CapsuleChange, CapsuleRow, CapsuleRows, CapsuleSettings } from "../db/capsule-rows.ts";
import { type CapsuleStatus, capsuleStatuses, type DeadlineAction } from "../wire/capsule.ts";
import { CapsuleError } from "../wire/errors.ts";
import { type Intent, isFinal, isLive, live, next, type Status, type Trigger } from "./lifecycle.ts";

/** A row whose status and intent are those of the state machine. */
export interface Capsule extends CapsuleRow {
  status: Status;
  intent: Intent | null;
  onTimeout: DeadlineAction;
  onExpiry: DeadlineAction;
}

export interface CapsulePage {
  rows: (Capsule & { sequence: number })[];
  isLast: boolean;
}

const noCapsules = Object.fromEntries(capsuleStatuses.map((status) => [status, 0])) as Record<CapsuleStatus, number>;

/** Called with the capsule after a change that its team can see; `row` is undefined when it is gone. Must not throw. */
export type Subscriber = (teamId: string, id: string, row: Capsule | undefined) => void;

export type CommitTrigger = Exclude<Trigger, "destroy" | "capture">;

export class CapsuleStore {
  /**
   * Paused capsules of which another host of a cluster may be the holder by now. Their rows stay as they are, and are no client's until they
   * go.
   */
  readonly leaving = new Set<string>();
  /**
   * Paused capsules that hosts of a cluster move. `away`: from this one, and nothing is resumed here. `here`: they have come, or stay, and are
   * resumed.
   */
  readonly moving = new Map<string, "away" | "here">();
  readonly #rows: CapsuleRows;
  readonly #now: () => number;
  readonly #emitter = new EventEmitter().setMaxListeners(0);
  readonly #subscribers = new Set<Subscriber>();
  readonly #triggered: ((row: Capsule, trigger: CommitTrigger) => void)[] = [];
  /** The number of capsules in each status. All changes go through this store, so that no probe scans the table. */
  readonly #counts: Record<CapsuleStatus, number>;
  #runningMemoryMb: number;
  /** The number of live capsules of each team. */
  readonly #live = new Counts();
  readonly #rowListeners: ((id: string) => void)[] = [];

  constructor(rows: CapsuleRows, now: () => number) {
    this.#rows = rows;
    this.#now = now;
    this.#counts = { ...noCapsules };
    for (const [status, count] of rows.counts()) this.#counts[status as Status] = count;
    this.#runningMemoryMb = rows.runningMemoryMb(live);
    for (const [teamId, count] of rows.liveByTeam(live)) this.#live.set(teamId, count);
  }

  /** The capsules of all teams, including those being destroyed. */
  all(): Capsule[] {
    return this.#rows.all() as Capsule[];
  }

  /** A capsule that is not here was destroyed. */
  noteDestroyed(id: string): void {
    this.#rows.noteDestroyed(id, this.#now());
  }

  /** Whether a capsule with this id was destroyed. */
  wasDestroyed(id: string): boolean {
    return this.#rows.hasTombstone(id);
  }

  /** Ids of capsules destroyed since then, a page in their order. */
  destroyedSince(atMs: number, after: string, most: number): string[] {
    return this.#rows.destroyedSince(atMs, after, most);
  }

  get(id: string): Capsule | undefined {
    return this.#rows.get(id) as Capsule | undefined;
  }

  /** The number of capsules in each status. */
  counts(): Record<CapsuleStatus, number> {
    return { ...this.#counts };
  }

  /** Memory of all capsules that have a VM or are being given one. */
  runningMemoryMb(): number {
    return this.#runningMemoryMb;
  }

  /** Teams that have a capsule with a VM, or one that is being given a VM. */
  liveTeams(): Iterable<string> {
    return this.#live.keys();
  }

  /** As CapsuleRows.page; those being destroyed too. */
  page(teamId: string, sequence: number, bounds: { rows: number; textBytes: number }): CapsulePage {
    return this.#rows.page(teamId, sequence, bounds) as CapsulePage;
  }

  idNamed(teamId: string, name: string): string | undefined {
    return this.#rows.idNamed(teamId, name);
  }

  /** The secret of a capsule of any team; null: none was made yet. Undefined: there is no such capsule, or it is being destroyed. */
  urlSecret(id: string): Uint8Array | null | undefined {
    return this.get(id)?.intent === "destroy" ? undefined : this.#rows.urlSecret(id);
  }

  /** Sets the secret of a capsule that has none. */
  setUrlSecret(id: string, secret: Uint8Array): void {
    this.#rows.setUrlSecret(id, secret);
  }

  /** Sealed; undefined: none. */
  envs(id: string): Uint8Array | undefined {
    return this.#rows.envs(id);
  }

  setEnvs(id: string, sealed: Uint8Array): void {
    this.#rows.setEnvs(id, sealed);
  }

  ofTeam(teamId: string): Capsule[] {
    return (this.#rows.ofTeam(teamId) as Capsule[]).filter((row) => row.intent !== "destroy");
  }

  isBeingDestroyed(id: string): boolean {
    const row = this.get(id);
    return row === undefined || row.intent === "destroy";
  }

  /**
   * Throws the same CapsuleError("not_found") for an unknown id, a destroyed capsule and another team's; "unavailable" for one that is
   * leaving this host.
   */
  require(teamId: string, id: string): Capsule {
    const row = this.#rows.ofTeamById(teamId, id);
    if (row === undefined || row.intent === "destroy") throw missing(id);
    if (this.leaving.has(id)) throw isLeaving(id);
    return row as Capsule;
  }

  /** As CapsuleRows.insert. */
  insert(row: Capsule, alongside?: () => void): boolean {
    const isNew = this.#rows.insert(row, alongside);
    if (isNew) {
      this.#count(row, 1);
      this.#notify(row.id, row);
      this.#publish(row.teamId, row.id, row);
    }
    return isNew;
  }

  /**
   * Records the change that is about to begin, in one transaction with `alongside`. Throws when the row has changed since it was
   * read.
   */
  setIntent(row: Capsule, intent: Exclude<Intent, "destroy">, alongside = () => {}): Capsule {
    const changed = this.#rows.changeWith(row.id, row.revision, { intent }, alongside);
    return requireChanged(row, this.#notified(row, changed));
  }

  /**
   * As `setIntent`, without an fsync. For what needs or makes a VM: a power cut ends the VM too, and the row without the intent
   * then describes what is left.
   */
  setIntentUnsynced(row: Capsule, intent: Extract<Intent, "pause" | "resume" | "stop" | "start">): Capsule {
    const changed = this.#rows.changeUnsynced(row.id, row.revision, { intent });
    return requireChanged(row, this.#notified(row, changed));
  }

  /** A change under way goes on, and the time of the last change stays. `alongside` is called in the same transaction. */
  set(row: Capsule, settings: CapsuleSettings, alongside?: () => void): Capsule {
    const changed = this.#rows.set(row.id, settings, alongside) as Capsule | undefined;
    if (changed === undefined) throw missing(row.id);
    this.#publish(row.teamId, row.id, changed);
    for (const listener of this.#rowListeners) listener(row.id);
    return changed;
  }

  /**
   * Resolves with the capsule when it has `status` or can no longer reach it: with the row that the change has written, for all that
   * wait for it. Resolves with undefined when the capsule is gone, or `timeoutMs` is over.
   */
  async untilStatus(
    id: string,
    status: CapsuleStatus,
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<Capsule | undefined> {
    const { promise, resolve } = Promise.withResolvers<Capsule | undefined>();
    const look = (row: Capsule | undefined) => {
      if (row === undefined || row.intent === "destroy") resolve(undefined);
      else if (row.status === status || (isFinal(row.status) && row.intent === null)) resolve(row);
    };
    const end = () => resolve(undefined);
    const timer = setTimeout(end, timeoutMs);
    signal.addEventListener("abort", end);
    const off = this.onChange(id, look);
    look(this.get(id));
    if (signal.aborted) end();
    const row = await promise;
    off();
    signal.removeEventListener("abort", end);
    clearTimeout(timer);
    return row;
  }

  /** Follows the trigger's arrow after the work succeeded. Undefined when a destroy began meanwhile. */
  commit(row: Capsule, trigger: CommitTrigger, also: CapsuleChange = {}): Capsule | undefined {
    const status = next(row.status, trigger);
    const committed = this.#change(row, { status, intent: null, lastUpdated: this.#now(), ...also });
    if (committed === undefined) return undefined;
    this.#publish(row.teamId, row.id, committed);
    for (const listener of this.#triggered) listener(committed, trigger);
    return committed;
  }

  /** Calls `listener` at each commit, with its trigger. It must not throw. */
  onTrigger(listener: (row: Capsule, trigger: CommitTrigger) => void): void {
    this.#triggered.push(listener);
  }

  /** Runs `work`, whose changes are durable only with the next synced commit. */
  unsynced<T>(work: () => T): T {
    return this.#rows.unsynced(work);
  }

  /** Takes the intent back after the work failed and was undone. */
  clearIntent(row: Capsule): Capsule | undefined {
    return this.#change(row, { intent: null });
  }

  /**
   * Ends the capsule for its team: one transaction runs `alongside`, adds the tombstone that keeps the id from being used
   * again, and sets the intent. Throws when the row has changed since it was read; then nothing is written.
   */
  beginDestroy(row: Capsule, alongside: () => void = () => {}): Capsule {
    const destroyed = this.#rows.beginDestroy(row.id, row.revision, this.#now(), alongside) as Capsule;
    this.#notified(row, destroyed);
    this.#publish(row.teamId, row.id, undefined);
    return destroyed;
  }

  remove(id: string): void {
    const row = this.get(id);
    this.#rows.remove(id);
    this.leaving.delete(id);
    this.moving.delete(id);
    if (row !== undefined) this.#count(row, -1);
    this.#notify(id, undefined);
  }

  /**
   * Calls `listener` at each change of this capsule's status or intent until the returned function is called, with its row; undefined:
   * it is gone.
   */
  onChange(id: string, listener: (row: Capsule | undefined) => void): () => void {
    this.#emitter.on(id, listener);
    return () => this.#emitter.off(id, listener);
  }

  /** Calls `listener` with the id of a capsule at each change of its row but for its times of activity and its bytes. It must not throw. */
  onRow(listener: (id: string) => void): void {
    this.#rowListeners.push(listener);
  }

  /** Calls `subscriber` at each change that a team can see, until the returned function is called. */
  subscribe(subscriber: Subscriber): () => void {
    this.#subscribers.add(subscriber);
    return () => this.#subscribers.delete(subscriber);
  }

  #change(row: Capsule, change: CapsuleChange): Capsule | undefined {
    return this.#notified(row, this.#rows.change(row.id, row.revision, change));
  }

  #notified(before: Capsule, row: CapsuleRow | undefined): Capsule | undefined {
    const changed = row as Capsule | undefined;
    if (changed === undefined) return undefined;
    this.#count(before, -1);
    this.#count(changed, 1);
    this.#notify(before.id, changed);
    return changed;
  }

  #count(row: Capsule, by: 1 | -1): void {
    this.#counts[row.status] += by;
    if (!isLive(row)) return;
    this.#runningMemoryMb += by * row.memoryMb;
    this.#live.add(row.teamId, by);
  }

  #notify(id: string, row: Capsule | undefined): void {
    this.#emitter.emit(id, row);
    for (const listener of this.#rowListeners) listener(id);
  }

  #publish(teamId: string, id: string, row: Capsule | undefined): void {
    for (const subscriber of this.#subscribers) subscriber(teamId, id, row);
  }
}

function requireChanged({ id }: Capsule, changed: Capsule | undefined): Capsule {
  if (changed === undefined) throw new Error(`the row of capsule ${id} has changed since it was read`);
  return changed;
}

function isLeaving(id: string): CapsuleError {
  const message = `capsule ${id} is being released by its host at this moment; repeat the request`;
  return new CapsuleError("unavailable", message, { retryAfterSec: 1 });
}

export function missing(id: string): CapsuleError {
  return new CapsuleError("not_found", `there is no capsule ${id}`);
}
