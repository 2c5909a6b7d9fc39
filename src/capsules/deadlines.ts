/**
 * The policy of deadlines: the ends of lifetimes and retentions, which stand in the rows, and the inactivity of idle.ts. A capsule
 * with several that have passed meets the earliest, and that may take the others away: a paused capsule has no lifetime.
 *
 * One timer looks once a second while any row has a deadline, and reads an index only when one may be due.
 */
import { Counts } from "../counts.ts";
import type { DeadlineRows } from "../db/deadline-rows.ts";
import type { Log } from "../log.ts";
import type { DeadlineAction } from "../wire/capsule.ts";
import type { Adoptions } from "./adoptions.ts";
import type { Clock } from "./clock.ts";
import type { Decisions } from "./decisions.ts";
import type { Idle } from "./idle.ts";
import { retained } from "./lifecycle.ts";
import type { RunPolicy } from "./run-policy.ts";
import type { DeadlineCause } from "./service-pauses.ts";
import type { Capsule, CapsuleStore } from "./store.ts";

export interface DeadlinesOptions {
  store: Pick<CapsuleStore, "get" | "subscribe" | "moving">;
  rows: Pick<DeadlineRows, "soonest" | "due">;
  idle: Pick<Idle, "passed" | "passedAt" | "pauseFailed">;
  adoptions: Pick<Adoptions, "has">;
  decisions: Pick<Decisions, "isUnderWay">;
  clock: Clock;
  log: Log;
  /** Does what the deadline asks for. */
  act: (row: Capsule, action: DeadlineAction, cause: DeadlineCause) => Promise<void>;
}

interface Due {
  at: number;
  cause: DeadlineCause;
  action: DeadlineAction;
}

const tickMs = 1_000;
/** Time until an action that failed is tried again. */
const retryMs = 30_000;
/** Changes of one team under way at once: a team whose pauses take long holds up no other team's deadlines. */
const actingMax = 16;
/** Time until a capsule is looked at again that is being changed or adopted: its deadline waits, and hides no later one. */
const busyMs = 2_000;
/** A larger step of the wall clock delays what destroys, since the clock may be set right soon. */
const stepMs = 3_600_000;
const afterStepMs = 60_000;

export class Deadlines implements RunPolicy {
  readonly #options: DeadlinesOptions;
  readonly #acting = new Set<string>();
  /** The number of those by team. */
  readonly #actingOf = new Counts();
  /** Capsules with a deadline that has passed and that wait for others of their team, in line. */
  readonly #queues = new Map<string, Set<string>>();
  /** Monotonic milliseconds until which a capsule is left alone: its action has failed, or waits for a steady clock. */
  readonly #later = new Map<string, number>();
  /** The next deadline in the rows is not earlier, in epoch milliseconds. */
  #nextAt = Number.NEGATIVE_INFINITY;
  /** Wall clock less monotonic clock, when last looked at. */
  #aheadMs: number;
  #destroysFromTicks = Number.NEGATIVE_INFINITY;
  #isHeld = false;
  #isClosed = false;
  #cancel: (() => void) | undefined;

  constructor(options: DeadlinesOptions) {
    this.#options = options;
    this.#aheadMs = options.clock.now() - options.clock.ticks();
    options.store.subscribe((_teamId, _id, row) => {
      if (row !== undefined && (row.expiresAt !== null || row.retentionSec > 0)) this.#expect();
    });
    this.#expect();
  }

  /** Acts on nothing until `release`: while a start of the server makes rows and guests agree. */
  hold(): void {
    this.#isHeld = true;
  }

  /** Acts on all that has passed, in the order of the times. */
  release(): void {
    const { store, rows, idle, clock } = this.#options;
    this.#isHeld = false;
    if (this.#isClosed) return;
    const passed = idle.passed().flatMap((each) => {
      const teamId = store.get(each.id)?.teamId;
      return teamId === undefined ? [] : [{ ...each, teamId }];
    });
    const due = rows.soonest(Number.MAX_SAFE_INTEGER, clock.now());
    for (const { id, teamId } of [...passed, ...due].sort((a, b) => a.dueAt - b.dueAt)) {
      if (this.#actingOf.of(teamId) < actingMax) this.#begin(id, teamId);
      else this.#enqueue(id, teamId);
    }
    this.#expect();
  }

  /** For the idle timer. Rejects when the action fails. */
  async inactive(id: string): Promise<void> {
    const teamId = this.#options.store.get(id)?.teamId;
    if (teamId === undefined || this.#isHeld || this.#isClosed || this.#acting.has(id)) return;
    if (this.#actingOf.of(teamId) >= actingMax) {
      this.#enqueue(id, teamId);
      return;
    }
    this.#enter(id, teamId);
    try {
      if ((await this.#act(id)) === "later")
        throw new Error("the clock was set within the last minute, or a decision is awaited");
    } finally {
      this.#leave(id, teamId);
    }
  }

  began(): void {}
  changed(): void {}

  /** The change under way has ended. */
  pauseFailed({ id }: Capsule): void {
    this.#later.delete(id);
  }

  ended(id: string): void {
    this.#later.delete(id);
  }

  close(): void {
    this.#isClosed = true;
    this.#cancel?.();
  }

  /** The rows may have an earlier deadline than the one known. */
  #expect(): void {
    this.#nextAt = Number.NEGATIVE_INFINITY;
    this.#arm();
  }

  #arm(): void {
    if (this.#cancel !== undefined || this.#isClosed) return;
    this.#cancel = this.#options.clock.after(tickMs, () => this.#tick());
  }

  #tick(): void {
    this.#cancel = undefined;
    if (this.#isClosed) return;
    this.#noticeStep();
    if (!this.#isHeld && this.#options.clock.now() >= this.#nextAt) this.#look();
    if (this.#nextAt < Number.POSITIVE_INFINITY) this.#arm();
  }

  #look(): void {
    const { rows, clock, log } = this.#options;
    const [now, ticks] = [clock.now(), clock.ticks()];
    for (const [id, until] of this.#later) if (until <= ticks) this.#later.delete(id);
    try {
      this.#nextAt = rows.soonest(1)[0]?.dueAt ?? Number.POSITIVE_INFINITY;
      if (this.#nextAt > now) return;
      // A deadline stays in the rows until its change has ended.
      const except = [...this.#acting, ...this.#later.keys(), ...this.#queued()];
      for (const { id, teamId } of rows.due(now, { perTeam: actingMax, except })) {
        if (this.#actingOf.of(teamId) < actingMax) this.#begin(id, teamId);
      }
    } catch (error) {
      log.error({ err: error }, "deadlines could not be read; it will be tried again");
    }
  }

  #queued(): Set<string> {
    return new Set([...this.#queues.values()].flatMap((queue) => [...queue]));
  }

  #beginQueued(teamId: string): void {
    const queue = this.#queues.get(teamId) ?? new Set();
    for (const id of queue) {
      if (this.#actingOf.of(teamId) >= actingMax) return;
      queue.delete(id);
      this.#begin(id, teamId);
    }
    this.#queues.delete(teamId);
  }

  #begin(id: string, teamId: string): void {
    if (this.#acting.has(id)) return;
    this.#enter(id, teamId);
    this.#act(id)
      .then((outcome) => {
        const row = outcome === "later" ? this.#options.store.get(id) : undefined;
        if (row !== undefined) this.#options.idle.pauseFailed(row);
      })
      .catch((error: unknown) => this.#fail(id, error))
      .finally(() => this.#leave(id, teamId));
  }

  #enqueue(id: string, teamId: string): void {
    this.#queues.set(teamId, (this.#queues.get(teamId) ?? new Set()).add(id));
  }

  #enter(id: string, teamId: string): void {
    this.#acting.add(id);
    this.#actingOf.add(teamId);
  }

  #leave(id: string, teamId: string): void {
    this.#acting.delete(id);
    this.#actingOf.subtract(teamId);
    if (!this.#isClosed) this.#beginQueued(teamId);
  }

  #fail(id: string, error: unknown): void {
    const { store, idle, clock, log } = this.#options;
    this.#later.set(id, clock.ticks() + retryMs);
    log.warn({ err: error, capsule: id }, "a deadline's change failed; it will be tried again");
    const row = idle.passedAt(id) === undefined ? undefined : store.get(id);
    if (row !== undefined) idle.pauseFailed(row);
  }

  /**
   * Nothing happens while the capsule is being changed, moved or adopted: a deadline waits for its turn. Nor is it destroyed while a decision
   * is awaited, such as that of its resume, which takes the deadline away.
   */
  async #act(id: string): Promise<"later" | undefined> {
    const { store, adoptions, decisions, clock, act } = this.#options;
    const row = store.get(id);
    if (row === undefined) return undefined;
    if (row.intent !== null || adoptions.has(id) || store.moving.has(id)) {
      this.#later.set(id, clock.ticks() + busyMs);
      return undefined;
    }
    const due = this.#earliest(row);
    if (due === undefined) return undefined;
    this.#noticeStep();
    if (due.action === "destroy" && clock.ticks() < this.#destroysFromTicks) {
      this.#later.set(id, this.#destroysFromTicks);
      return "later";
    }
    if (due.action === "destroy" && decisions.isUnderWay(id)) {
      this.#later.set(id, clock.ticks() + busyMs);
      return "later";
    }
    await act(row, due.action, due.cause);
    return undefined;
  }

  /** The deadline of the capsule that has passed first. */
  #earliest(row: Capsule): Due | undefined {
    const { idle, clock } = this.#options;
    const now = clock.now();
    const { id, status, expiresAt, retentionSec, lastUpdated } = row;
    if (retained.includes(status)) {
      const at = lastUpdated + retentionSec * 1_000;
      return retentionSec > 0 && at <= now ? { at, cause: "retention", action: "destroy" } : undefined;
    }
    if (status !== "running") return undefined; // a guest that reboots
    const idleAt = idle.passedAt(id);
    const inactivity: Due | undefined =
      idleAt === undefined ? undefined : { at: idleAt, cause: "idle", action: row.onTimeout };
    if (expiresAt === null || expiresAt > now) return inactivity;
    if (inactivity !== undefined && inactivity.at <= expiresAt) return inactivity;
    return { at: expiresAt, cause: "lifetime", action: row.onExpiry };
  }

  #noticeStep(): void {
    const { clock } = this.#options;
    const aheadMs = clock.now() - clock.ticks();
    if (Math.abs(aheadMs - this.#aheadMs) > stepMs) this.#destroysFromTicks = clock.ticks() + afterStepMs;
    this.#aheadMs = aheadMs;
  }
}
