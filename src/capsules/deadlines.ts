/**
 * The policy of deadlines: the ends of lifetimes and retentions, which stand in the rows, and the inactivity of idle.ts. A capsule
 * with several that have passed meets the earliest, and that may take the others away: a paused capsule has no lifetime.
 *
 * One timer looks once a second while any row has a deadline, and reads an index only when one may be due.
 */
import type { DeadlineRow, DeadlineRows } from "../db/deadline-rows.ts";
import type { Log } from "../log.ts";
import type { DeadlineAction } from "../wire/capsule.ts";
import type { Adoptions } from "./adoptions.ts";
import type { Clock } from "./clock.ts";
import type { Idle } from "./idle.ts";
import { retained } from "./lifecycle.ts";
import type { RunPolicy } from "./run-policy.ts";
import type { DeadlineCause } from "./service-pauses.ts";
import type { Capsule, CapsuleStore } from "./store.ts";

export interface DeadlinesOptions {
  store: Pick<CapsuleStore, "get" | "subscribe">;
  rows: Pick<DeadlineRows, "soonest">;
  idle: Pick<Idle, "passed" | "passedAt" | "pauseFailed">;
  adoptions: Pick<Adoptions, "has">;
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
/** Changes under way at once. */
const actingMax = 64;
/** A larger step of the wall clock delays what destroys, since the clock may be set right soon. */
const stepMs = 3_600_000;
const afterStepMs = 60_000;

export class Deadlines implements RunPolicy {
  readonly #options: DeadlinesOptions;
  readonly #acting = new Set<string>();
  /** Capsules with a deadline that had passed at the start, the earliest first. */
  readonly #queue = new Set<string>();
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
    const { rows, idle, clock } = this.#options;
    this.#isHeld = false;
    if (this.#isClosed) return;
    const [now, passed] = [clock.now(), idle.passed()];
    const due = rows.soonest(Number.MAX_SAFE_INTEGER, now);
    for (const { id } of [...passed, ...due].sort((a, b) => a.dueAt - b.dueAt)) this.#queue.add(id);
    this.#beginQueued();
    this.#expect();
  }

  /** For the idle timer. Rejects when the action fails. */
  async inactive(id: string): Promise<void> {
    if (this.#isHeld || this.#isClosed || this.#queue.has(id)) return;
    if ((await this.#act(id)) === "later") throw new Error("the clock was set within the last minute");
  }

  began(): void {}
  changed(): void {}
  pauseFailed(): void {}

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
    const isFree = !this.#isHeld && this.#queue.size === 0;
    if (isFree && this.#options.clock.now() >= this.#nextAt) this.#look();
    if (this.#nextAt < Number.POSITIVE_INFINITY) this.#arm();
  }

  #look(): void {
    const { rows, clock, log } = this.#options;
    const [now, ticks] = [clock.now(), clock.ticks()];
    for (const [id, until] of this.#later) if (until <= ticks) this.#later.delete(id);
    const most = 2 * actingMax + this.#later.size;
    let soonest: DeadlineRow[];
    try {
      soonest = rows.soonest(most);
    } catch (error) {
      log.error({ err: error }, "deadlines could not be read; it will be tried again");
      return;
    }
    // A deadline stays in the rows until its change has ended.
    this.#nextAt = soonest[0]?.dueAt ?? Number.POSITIVE_INFINITY;
    for (const { id, dueAt } of soonest) {
      if (dueAt > now || this.#acting.size >= actingMax) break;
      if (!this.#later.has(id)) this.#begin(id);
    }
  }

  #beginQueued(): void {
    for (const id of this.#queue) {
      if (this.#acting.size >= actingMax) return;
      this.#queue.delete(id);
      this.#begin(id);
    }
  }

  #begin(id: string): void {
    if (this.#acting.has(id)) return;
    this.#acting.add(id);
    this.#act(id)
      .catch((error: unknown) => this.#fail(id, error))
      .finally(() => {
        this.#acting.delete(id);
        if (!this.#isClosed) this.#beginQueued();
      });
  }

  #fail(id: string, error: unknown): void {
    const { store, idle, clock, log } = this.#options;
    this.#later.set(id, clock.ticks() + retryMs);
    log.warn({ err: error, capsule: id }, "a deadline's change failed; it will be tried again");
    const row = idle.passedAt(id) === undefined ? undefined : store.get(id);
    if (row !== undefined) idle.pauseFailed(row);
  }

  /** Nothing happens while the capsule is being changed or adopted: a deadline waits for its turn. */
  async #act(id: string): Promise<"later" | undefined> {
    const { store, adoptions, clock, act } = this.#options;
    const row = store.get(id);
    if (row === undefined || row.intent !== null || adoptions.has(id)) return undefined;
    const due = this.#earliest(row);
    if (due === undefined) return undefined;
    this.#noticeStep();
    if (due.action === "destroy" && clock.ticks() < this.#destroysFromTicks) {
      this.#later.set(id, this.#destroysFromTicks);
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
