/**
 * Running capsules that this host moves to others while it is drained, four at a time (docs/adr/0055).
 *
 *   running ──► paused here ──► released ──► acquired by another host, which resumes it
 *      ▲             │ the deadline is over      │ so it is, and no host takes it
 *      └── resumed here ◄── acquired here ◄──────┘
 *
 * Its row here, and then PostgreSQL's, has the mark of a move from the beginning of the pause until it runs again: whichever step a
 * daemon has ended at, its next life goes on from there.
 */
import type { Clock } from "../capsules/clock.ts";
import type { Capsule, CapsuleStore } from "../capsules/store.ts";
import type { HoldingRows } from "../db/holding-rows.ts";
import type { ReleasedCapsule } from "../http/released.ts";
import type { Log } from "../log.ts";
import { messageOf } from "../wire/errors.ts";
import type { Acquiring } from "./acquiring.ts";
import type { Arrived } from "./arrived.ts";
import type { Drain } from "./draining.ts";
import type { Membership } from "./membership.ts";
import type { Postgres } from "./postgres.ts";
import { releasedCapsule } from "./released-capsules.ts";
import type { Releases } from "./releases.ts";
import { StayReasons } from "./stay-reasons.ts";

/** Changes of this host's service. */
export interface MovingService {
  /** As ServicePauses.toMove. */
  pause(id: string, mark: () => void): Promise<boolean>;
  resume(row: Capsule): Promise<void>;
  /** Whether commands run in it, and when there was activity last. */
  isBusy(id: string): boolean;
  lastTicks(id: string): number | undefined;
  isAdopting(id: string): boolean;
}

export interface MovesOptions {
  sql: Postgres;
  membership: Pick<Membership, "me" | "hosts">;
  store: Pick<CapsuleStore, "get" | "all" | "leaving" | "moving" | "onChange" | "wasDestroyed">;
  holding: Pick<HoldingRows, "allMoving" | "setMoving">;
  acquiring: Pick<Acquiring, "acquire">;
  arrived: Pick<Arrived, "take" | "round" | "ended">;
  service: MovingService;
  /** undefined: the cluster has no bucket. */
  releases: () => Pick<Releases, "hasten" | "failureOf" | "stayOf"> | undefined;
  /** Has a host acquire the capsule, and resume it. Resolves with "elsewhere" when it is not released any more. */
  place: (capsule: ReleasedCapsule) => Promise<{ host: string | null } | "elsewhere">;
  clock: Clock;
  log: Log;
}

const movesMax = 4;
/** Released capsules that are looked for at once. */
const foundMax = 100;
/** Another host has room for a VM. */
const roomMb = 64;
/** Between two rounds of questions to all hosts: so many seconds more after each, and not more than these. */
const longestPauseMs = 30_000;
/** Attempts to take a capsule back. */
const takenBackMax = 10;

export class Moves {
  readonly #options: MovesOptions;
  readonly #underWay = new Map<string, Promise<void>>();
  readonly #stays: StayReasons;
  /** Called at each round, at the deadline and at the end. */
  readonly #wakes = new Set<() => void>();
  #drain: Drain | undefined;
  #cancel = () => {};
  #hasFound = false;
  #isClosed = false;

  constructor(options: MovesOptions) {
    this.#options = options;
    this.#stays = new StayReasons(options);
    const { store, holding } = options;
    // A row that is paused, or was being paused, when the daemon ended: nothing resumes it before this host knows whether it is drained.
    for (const id of holding.allMoving()) if (store.get(id) !== undefined) store.moving.set(id, "away");
  }

  /** Once a second, when the service has recovered. `isDue`: what other hosts have left is looked for too. Never rejects. */
  async round(drain: Drain | undefined, isDue: boolean): Promise<void> {
    const { clock, arrived, releases } = this.#options;
    if (this.#isClosed) return;
    this.#drain = drain;
    this.#stays.follow(drain);
    this.#cancel();
    const leftMs = drain === undefined ? 0 : drain.untilTicks - clock.ticks();
    if (leftMs > 0) this.#cancel = clock.after(leftMs, () => this.#wake());
    arrived.round();
    this.#wake();
    this.#goOn();
    if (releases() === undefined) return;
    if (drain !== undefined || isDue || !this.#hasFound) await this.#findReleased();
    if (drain !== undefined) {
      this.#beginMoves();
      this.#notePaused();
    }
    await this.#stays.write();
  }

  /** A later life goes on with the moves under way. Resolves when nothing of it changes any more. */
  async stop(): Promise<void> {
    this.#isClosed = true;
    this.#cancel();
    this.#wake();
    await this.#options.arrived.ended();
  }

  /** Resolves when no move is under way. */
  async ended(): Promise<void> {
    await Promise.all(this.#underWay.values());
  }

  get #isOver(): boolean {
    return this.#drain === undefined || this.#options.clock.ticks() >= this.#drain.untilTicks;
  }

  #wake(): void {
    for (const wake of this.#wakes) wake();
  }

  /** Paused capsules of moves that an earlier life, or a later one of the drain, has begun. */
  #goOn(): void {
    const { store } = this.#options;
    for (const [id, way] of store.moving) {
      const row = store.get(id);
      const isPaused = row?.status === "paused" && row.intent === null;
      if (way === "away" && isPaused) this.#begin(id, () => this.#send(id));
    }
  }

  async #findReleased(): Promise<void> {
    const { sql, membership, log } = this.#options;
    const expired = membership.hosts().filter(({ isExpired }) => isExpired);
    const hosts = [membership.me.name, ...expired.map(({ name }) => name)];
    try {
      const found = await sql.query<{ id: string }>(
        `SELECT id FROM capsules WHERE host IS NULL AND moving AND last_host = ANY($1) ORDER BY last_host, id LIMIT ${foundMax}`,
        [hosts],
        { what: "look for capsules that are moved" },
      );
      this.#hasFound = true;
      for (const { id } of found) this.#begin(id, () => this.#placed(id));
    } catch (error) {
      if (sql.isAway) return;
      this.#hasFound = true;
      log.error({ err: error }, "capsules that are moved could not be looked for");
    }
  }

  #beginMoves(): void {
    const { store, service, clock } = this.#options;
    const running = store.all().filter(({ id, status, intent }) => {
      const isMovable = status === "running" && intent === null && !service.isAdopting(id);
      return isMovable && !this.#underWay.has(id) && !this.#stays.isFinal(id);
    });
    const why = this.#isOver ? "the deadline of the drain is over" : this.#lackOfHosts();
    if (why !== undefined) {
      for (const { id } of running) this.#stays.note(id, why);
      return;
    }
    const waits = clock.ticks() < this.#drain!.busyUntilTicks;
    const of = (id: string) => ({
      id,
      isBusy: service.isBusy(id),
      last: service.lastTicks(id) ?? Number.NEGATIVE_INFINITY,
    });
    const ranked = running.map(({ id }) => of(id)).filter(({ isBusy }) => !isBusy || !waits);
    ranked.sort((a, b) => Number(a.isBusy) - Number(b.isBusy) || a.last - b.last || (a.id < b.id ? -1 : 1));
    for (const { id } of ranked) this.#begin(id, () => this.#move(id));
  }

  /** Paused capsules of no move that cannot be uploaded. */
  #notePaused(): void {
    const { store, releases } = this.#options;
    const isPaused = ({ id, status, intent }: Capsule) =>
      status === "paused" && intent === null && !store.moving.has(id);
    const paused = store.all().filter(isPaused);
    const reasons = paused.map(({ id }) => [id, releases()?.stayOf(id)] as const);
    this.#stays.notePaused(new Map(reasons.filter((each): each is [string, string] => each[1] !== undefined)));
  }

  /** undefined: there is a host that may take a capsule. */
  #lackOfHosts(): string | undefined {
    const { membership } = this.#options;
    const { me } = membership;
    const others = membership
      .hosts()
      .filter(({ name, state, isExpired }) => name !== me.name && state === "up" && !isExpired);
    if (others.length === 0) return "no other host is up that takes capsules";
    const hasRoom = others.some(({ load }) => Number(load.free_mb) >= roomMb);
    return hasRoom ? undefined : "no other host has memory free";
  }

  /** At most four at a time. */
  #begin(id: string, work: () => Promise<void>): void {
    if (this.#underWay.size >= movesMax || this.#underWay.has(id) || this.#isClosed) return;
    const { log } = this.#options;
    const end = work()
      .catch((error: unknown) => log.error({ err: error, capsule: id }, "the move of a capsule has failed"))
      .finally(() => this.#underWay.delete(id));
    this.#underWay.set(id, end);
  }

  async #move(id: string): Promise<void> {
    const { store, holding, service } = this.#options;
    store.moving.set(id, "away");
    let isPaused = false;
    try {
      isPaused = await service.pause(id, () => holding.setMoving(id, true));
    } catch (error) {
      if (store.get(id) !== undefined) this.#stays.end(id, messageOf(error));
    } finally {
      if (!isPaused) store.moving.delete(id);
    }
    if (isPaused) await this.#send(id);
  }

  /** A capsule that is paused here. */
  async #send(id: string): Promise<void> {
    if (await this.#hasLeft(id)) await this.#placed(id);
  }

  /** False: it was resumed here, destroyed, or this daemon ends. */
  async #hasLeft(id: string): Promise<boolean> {
    const { store, arrived, releases } = this.#options;
    for (;;) {
      const row = store.get(id);
      if (row === undefined) return !store.wasDestroyed(id);
      if (this.#isClosed || row.status !== "paused" || row.intent !== null) return false;
      if (!store.leaving.has(id)) {
        if (this.#isOver || releases() === undefined) {
          this.#stays.end(id, releases()?.failureOf(id) ?? "it was not in the bucket before the deadline");
          arrived.take(id);
          return false;
        }
        releases()?.hasten(id);
      }
      await this.#woken(id);
    }
  }

  /** Resolves when a host holds the released capsule, or nothing is to be done about it. */
  async #placed(id: string): Promise<void> {
    const { clock } = this.#options;
    const known = { why: "no other host takes it", takenBack: 0 };
    for (let attempts = 1; !this.#isClosed; attempts++) {
      const wasOver = this.#isOver;
      if (await this.#isPlaced(id, known)) return;
      const dueTicks = clock.ticks() + Math.min(attempts * 1_000, longestPauseMs);
      while (!this.#isClosed && clock.ticks() < dueTicks && wasOver === this.#isOver) await this.#woken(id);
    }
  }

  /** One attempt. False: it is still nobody's. `known`: the reason so far, and the attempts to take it back. */
  async #isPlaced(id: string, known: { why: string; takenBack: number }): Promise<boolean> {
    const { sql, membership, place } = this.#options;
    const isTakenBack = this.#drain !== undefined && this.#isOver;
    try {
      const capsule = await this.#read(id);
      if (capsule === undefined) return true;
      if (isTakenBack && capsule.lastHost === membership.me.name) {
        if (known.takenBack < takenBackMax) return await this.#isBack(id, known);
        await this.#giveUp(capsule, known.why);
        return true;
      }
      return (await place(capsule)) !== "elsewhere";
    } catch (error) {
      if (!sql.isAway) known.why = messageOf(error);
      return false;
    }
  }

  async #isBack(id: string, known: { why: string; takenBack: number }): Promise<boolean> {
    known.takenBack += 1;
    const isBack = await this.#options.acquiring.acquire({ id, need: "move" });
    if (isBack) this.#stays.end(id, known.why);
    return isBack;
  }

  /** undefined: a host holds it, it is gone, or it is not to be resumed any more. */
  async #read(id: string): Promise<ReleasedCapsule | undefined> {
    const [found] = await this.#options.sql.query<{ row: Record<string, unknown> }>(
      "SELECT to_jsonb(c) AS row FROM capsules c WHERE id = $1 AND host IS NULL AND moving",
      [id],
      { what: "look for a capsule that is moved" },
    );
    return found === undefined ? undefined : releasedCapsule(found.row);
  }

  async #giveUp({ id, epoch }: ReleasedCapsule, why: string): Promise<void> {
    const { sql, log } = this.#options;
    await sql.call("end_move", [id, epoch], { what: "end the move of a capsule" });
    log.error({ capsule: id }, `a capsule that was moved stays paused, since no host takes it: ${why}`);
  }

  /** At the next round, the next change of the capsule's row here, the deadline, or the end. */
  async #woken(id: string): Promise<void> {
    if (this.#isClosed) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    const off = this.#options.store.onChange(id, () => resolve());
    this.#wakes.add(resolve);
    await promise;
    this.#wakes.delete(resolve);
    off();
  }
}
