/**
 * The work after each answered heartbeat: teams and keys are read, hosts are judged that may be lost, and rows of this host are compared
 * with the cluster's. Each of the three waits for none of the others, and is begun anew when its former round has ended.
 */
import type { Clock } from "../capsules/clock.ts";
import type { Log } from "../log.ts";
import type { Asserting } from "./asserting.ts";
import type { AuditShipping } from "./audit-shipping.ts";
import type { Catalog } from "./catalog.ts";
import type { Copies } from "./copies.ts";
import type { Draining } from "./draining.ts";
import type { Gathering } from "./gathering.ts";
import type { Leaving } from "./leaving.ts";
import type { LostHosts } from "./lost-hosts.ts";
import type { Beat, HostRow, Me, Membership } from "./membership.ts";
import type { Moves } from "./moves.ts";
import type { NewKeys } from "./new-keys.ts";
import type { OwnMachine } from "./own-machine.ts";
import type { Postgres } from "./postgres.ts";
import type { Settling } from "./settling.ts";

export interface RoundsOptions {
  sql: Postgres;
  me: Me;
  clock: Clock;
  log: Log;
  /** How long an entry of the audit log is kept. */
  auditKeepMs: number;
  hasBucket: boolean;
  membership: Pick<Membership, "hosts" | "isPutBack">;
  catalog: Pick<Catalog, "follow">;
  newKeys: Pick<NewKeys, "beginReading">;
  copies: Pick<Copies, "goOn" | "markAll">;
  settling: Pick<Settling, "settle" | "hasDoubts">;
  draining: Pick<Draining, "follow" | "drain">;
  moves: Pick<Moves, "round">;
  gathering: Pick<Gathering, "follow" | "round">;
  asserting: Pick<Asserting, "assert">;
  machine: Pick<OwnMachine, "tell">;
  leaving: Pick<Leaving, "hasAny" | "settle">;
  audit: Pick<AuditShipping, "try">;
  lost: Pick<LostHosts, "judge">;
  /** The other hosts that are not gone. */
  onHosts: ((others: readonly HostRow[]) => void) | undefined;
}

const settleMs = 60_000;
const tombstonesKeepMs = 30 * 86_400_000;

export class Rounds {
  readonly #options: RoundsOptions;
  #settledAt = Number.NEGATIVE_INFINITY;
  #comparing: Promise<void> | undefined;
  /** A host that is asked takes its time. */
  #judging: Promise<void> | undefined;
  /** Teams and keys wait for nothing else. */
  #reading: Promise<void> | undefined;
  #allRead = () => {};
  #hasGoneOn = false;
  /** The database is back since the last comparison of all rows began. */
  #isBack = false;
  #hasRecovered = false;

  constructor(options: RoundsOptions) {
    this.#options = options;
  }

  /** Call it when a heartbeat is sent. */
  sending(): void {
    this.#allRead = this.#options.newKeys.beginReading();
  }

  /** Call it when a heartbeat was answered. */
  begin(beat: Beat): void {
    const { me, membership, onHosts, lost, log } = this.#options;
    onHosts?.(membership.hosts().filter(({ name, state }) => name !== me.name && state !== "gone"));
    this.#options.gathering.follow(beat.isGathering);
    this.#reading ??= this.#read(beat)
      .catch((error: unknown) => log.error({ err: error }, "teams and keys could not be followed"))
      .finally(() => {
        this.#reading = undefined;
      });
    this.#isBack ||= beat.isBack; // also where the former round has not ended
    this.#comparing ??= this.#compare(beat).finally(() => {
      this.#comparing = undefined;
    });
    this.#judging ??= lost.judge().finally(() => {
      this.#judging = undefined;
    });
  }

  /** The service has recovered: its rows may be compared. */
  recovered(): void {
    this.#hasRecovered = true;
  }

  /** Resolves when the rounds under way have ended. */
  async done(): Promise<void> {
    await Promise.all([this.#reading, this.#comparing, this.#judging]);
  }

  async #read({ catalog, place }: Beat): Promise<void> {
    const allRead = this.#allRead; // what was vouched for later may not be in the heartbeat's number
    if (await this.#options.catalog.follow(catalog, place)) allRead();
  }

  async #compare({ place = "" }: Beat): Promise<void> {
    const { clock, membership, settling, draining, moves, gathering, asserting } = this.#options;
    const { leaving, audit, machine } = this.#options;
    const isBack = this.#isBack;
    this.#isBack = false;
    if (isBack || !this.#hasGoneOn) await this.#goOn();
    await draining.follow();
    await machine.tell();
    if (!this.#hasRecovered) return;
    if (membership.isPutBack) return await asserting.assert(place);
    if (leaving.hasAny) await leaving.settle();
    const isDue = isBack || clock.ticks() - this.#settledAt >= settleMs;
    await moves.round(draining.drain, isDue);
    await gathering.round();
    if (isDue) {
      this.#settledAt = clock.ticks();
      await settling.settle("all");
      await this.#forget();
    } else if (settling.hasDoubts) await settling.settle("doubts");
    await audit.try();
  }

  /** After a start or an outage every row is copied once: the numbers go on above those that the database has. */
  async #goOn(): Promise<void> {
    const { sql, log, copies } = this.#options;
    try {
      if (!this.#hasGoneOn) {
        await copies.goOn();
        this.#hasGoneOn = true;
      }
      copies.markAll();
    } catch (error) {
      if (!sql.isAway) log.error({ err: error }, "status copies could not be begun");
    }
  }

  async #forget(): Promise<void> {
    const { sql, auditKeepMs, log, hasBucket } = this.#options;
    try {
      await sql.call("forget", [tombstonesKeepMs, auditKeepMs], { what: "forget old entries" });
      if (hasBucket) await sql.call("forget_artifacts", [], { what: "forget old entries" });
    } catch (error) {
      if (!sql.isAway) log.error({ err: error }, "old entries of the cluster could not be removed");
    }
  }
}
