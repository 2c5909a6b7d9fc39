/**
 * Throttles the writes of a team's running capsules while the team is over its disk quota, or while the disk has little more
 * than the reserve of pauses. Reads, memory and commands are not affected, and the writes go on when there is room again.
 *
 * The disk's free space is read every second. Capsules are measured every minute, every 5 s while a team is throttled, and
 * as soon as the free space has fallen by a quarter of the reserve (256 MiB where there is none): bytes written between two
 * measurements are bounded, not only their time.
 */
import type { CapsuleRows } from "../db/capsule-rows.ts";
import type { Guest, Host } from "../host/host.ts";
import type { Log } from "../log.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Clock } from "./clock.ts";
import type { DiskUse } from "./quotas.ts";

const measureMs = 60_000;
const measureThrottledMs = 5_000;
/** A fall of the free space after which capsules are measured, where there is no reserve of which it could be a share. */
const fallWithoutReserveBytes = 256 << 20;
/** Enough for a guest to remove files and trim its disk; a thousand such guests write 16 MB/s. */
const throttledBytesPerSec = 16_384;
/** A disk that was low stays so until this multiple of the reserve is free. */
const recoveredFactor = 1.25;

/** Why a team's writes are throttled. */
export type DiskShortage = "quota" | "reserve";

export interface DiskState {
  freeBytes: number;
  reserveBytes: number;
  quotaBytes: number;
  /** Whether the last decision found less than the reserve. */
  wasLow: boolean;
  /** Bytes on disk of each team that has running capsules. */
  uses: ReadonlyMap<string, number>;
}

/**
 * The teams to throttle: those over their quota. Below the reserve also those that use the mean or more, and below half of it
 * all.
 */
export function throttledTeams(state: DiskState): { isLow: boolean; teams: Map<string, DiskShortage> } {
  const { freeBytes, reserveBytes, quotaBytes, wasLow, uses } = state;
  const isLow = freeBytes < reserveBytes * (wasLow ? recoveredFactor : 1);
  const isNearlyUsed = freeBytes < reserveBytes / 2;
  const meanBytes = [...uses.values()].reduce((sum, bytes) => sum + bytes, 0) / uses.size;
  const teams = new Map<string, DiskShortage>();
  for (const [teamId, bytes] of uses) {
    if (bytes > quotaBytes) teams.set(teamId, "quota");
    else if (isNearlyUsed || (isLow && bytes >= meanBytes)) teams.set(teamId, "reserve");
  }
  return { isLow, teams };
}

export interface DiskLimiterOptions {
  rows: Pick<CapsuleRows, "teams">;
  /** The live guests of running capsules. */
  guests: () => Iterable<Guest>;
  diskUse: Pick<DiskUse, "measure">;
  /** As last measured. */
  usedBytes: (teamId: string) => number;
  quotaBytes: number;
  space: Host["space"];
  clock: Pick<Clock, "ticks">;
  /** Called when a team begins to be throttled, and with undefined when it no longer is. */
  onChange: (teamId: string, shortage: DiskShortage | undefined) => void;
  log: Log;
}

export class DiskLimiter {
  readonly #options: DiskLimiterOptions;
  #freeBytes = Number.POSITIVE_INFINITY;
  #measured: { atTicks: number; freeBytes: number } | undefined;
  #isLow = false;
  #throttled = new Map<string, DiskShortage>();
  /** The limit of each guest's VM; undefined: not known. A guest that is not a key is new, or of an earlier daemon. */
  readonly #limits = new WeakMap<Guest, number | undefined>();
  /** Teams that were over their quota when their last running capsule stopped. */
  readonly #away = new Set<string>();
  #isFirst = true;
  /** Guests without the limit that the last decision gave them. */
  readonly #pending = new Set<Guest>();
  /** Guests whose QEMU has not answered yet. */
  readonly #asked = new Set<Guest>();
  #checking: Promise<void> | undefined;

  constructor(options: DiskLimiterOptions) {
    this.#options = options;
  }

  /** Throws CapsuleError("no_space") while files cannot be sent to the team's capsules. */
  requireWritable(teamId: string): void {
    const shortage = this.#throttled.get(teamId) ?? (this.#freeBytes < this.#options.space.reserveBytes && "reserve");
    if (shortage === false) return;
    const why =
      shortage === "quota"
        ? "the team is over its disk quota, so the writes of its capsules are throttled"
        : "the host's disk has only the space left that is reserved for pauses";
    throw new CapsuleError("no_space", why, { details: { shortage } });
  }

  /**
   * Call before a guest's processes run. Throttles it if its team is throttled, or was when its last running capsule stopped and
   * is still over its quota. Resolves when its QEMU has answered.
   */
  async beforeRun(teamId: string, guest: Guest): Promise<void> {
    const { usedBytes, quotaBytes } = this.#options;
    const isOver = this.#throttled.has(teamId) || (this.#away.has(teamId) && usedBytes(teamId) > quotaBytes);
    if (isOver) await this.#limit(guest, throttledBytesPerSec);
  }

  /** To be called every second; a call during a check joins it. */
  check(): Promise<void> {
    this.#checking ??= this.#check().finally(() => {
      this.#checking = undefined;
    });
    return this.#checking;
  }

  async #check(): Promise<void> {
    const { space, diskUse, guests, clock } = this.#options;
    this.#freeBytes = await this.#readFree();
    const isShort = this.#throttled.size > 0 || this.#freeBytes < space.reserveBytes;
    const hasNew = [...guests()].some((guest) => !this.#limits.has(guest));
    if (this.#measured !== undefined && (isShort || hasNew || this.#pending.size > 0)) this.#decide();
    if (!this.#isDue()) return;
    this.#measured = { atTicks: clock.ticks(), freeBytes: this.#freeBytes };
    await diskUse.measure();
    this.#decide();
  }

  /** Folders of lost+found are removed first while the disk has less than the reserve. */
  async #readFree(): Promise<number> {
    const { space } = this.#options;
    for (;;) {
      const { freeBytes } = space;
      if (freeBytes >= space.reserveBytes || !(await space.reclaim())) return freeBytes;
    }
  }

  #isDue(): boolean {
    if (this.#measured === undefined) return true;
    const { space, clock } = this.#options;
    const elapsedMs = clock.ticks() - this.#measured.atTicks;
    const step = space.reserveBytes > 0 ? space.reserveBytes / 4 : fallWithoutReserveBytes;
    const isFalling = this.#measured.freeBytes - this.#freeBytes >= step;
    return isFalling || elapsedMs >= (this.#throttled.size > 0 ? measureThrottledMs : measureMs);
  }

  #decide(): void {
    const { rows, guests, usedBytes, quotaBytes, space, onChange } = this.#options;
    const teamOf = rows.teams();
    const running = [...guests()].flatMap((guest) => {
      const teamId = teamOf.get(guest.id);
      return teamId === undefined ? [] : [{ guest, teamId }];
    });
    const uses = new Map(running.map(({ teamId }) => [teamId, usedBytes(teamId)]));
    const state = { freeBytes: this.#freeBytes, reserveBytes: space.reserveBytes, quotaBytes, uses };
    const { isLow, teams } = throttledTeams({ ...state, wasLow: this.#isLow });
    this.#isLow = isLow;
    const before = this.#throttled;
    this.#throttled = teams;
    for (const [teamId, shortage] of teams) if (before.get(teamId) !== shortage) onChange(teamId, shortage);
    for (const [teamId, shortage] of before) {
      if (!teams.has(teamId)) onChange(teamId, undefined);
      if (shortage === "quota" && !uses.has(teamId)) this.#away.add(teamId);
    }
    for (const teamId of uses.keys()) this.#away.delete(teamId);
    this.#pending.clear();
    // Not awaited: a QEMU that does not answer must not delay the limits of others.
    for (const { guest, teamId } of running) void this.#limit(guest, teams.has(teamId) ? throttledBytesPerSec : 0);
    this.#isFirst = false;
  }

  /** Never rejects. */
  async #limit(guest: Guest, bytesPerSec: number): Promise<void> {
    const initial = this.#isFirst ? undefined : 0;
    const known = this.#limits.has(guest) ? this.#limits.get(guest) : initial;
    const isAsked = this.#asked.has(guest);
    if (known === bytesPerSec && !isAsked) {
      this.#limits.set(guest, known);
      return;
    }
    this.#pending.add(guest);
    if (isAsked) return;
    this.#asked.add(guest);
    try {
      await guest.limitWrites(bytesPerSec);
      this.#limits.set(guest, bytesPerSec);
    } catch (error) {
      this.#limits.set(guest, undefined);
      this.#options.log.warn({ err: error, capsule: guest.id }, "the writes of a capsule could not be limited");
    } finally {
      this.#asked.delete(guest);
    }
  }
}
