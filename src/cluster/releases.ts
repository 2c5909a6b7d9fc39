/**
 * Uploads of paused capsules that rest, so that they are released: four at a time, the longest resting first. A resume that comes first
 * ends the upload and waits for nothing of it. Without PostgreSQL or the bucket nothing is released, and capsules are resumed here.
 */
import { randomBytes } from "node:crypto";
import type { Clock } from "../capsules/clock.ts";
import type { Capsule, CapsuleStore } from "../capsules/store.ts";
import type { HoldingRows } from "../db/holding-rows.ts";
import type { Log } from "../log.ts";
import { CapsuleError, messageOf } from "../wire/errors.ts";
import { isReleasable, type Leaving } from "./leaving.ts";
import type { Postgres } from "./postgres.ts";

/** A paused capsule's files, as this host has them. */
export interface Described {
  /** Revision of the row while it was being paused. */
  savedRevision: number;
  record: Readonly<Record<string, unknown>>;
  machine: Readonly<Record<string, unknown>>;
  qemuBuild: string | null;
  format: number;
  /** The sum of all files. */
  bytes: number;
}

export interface CheckpointUploads<Files extends Described = Described> {
  /** Rejects with "invalid_state" while the capsule's hashes are not there yet. */
  describe(id: string): Promise<Files>;
  /**
   * Resolves with the SHA-256 of the manifest when the bucket has all of the files, and what they stand on. A rejection may take 10 s, in
   * which it removes what it has written.
   */
  upload(files: Files, prefix: string, signal: AbortSignal): Promise<string>;
}

export interface ReleasesOptions {
  store: Pick<CapsuleStore, "get" | "all" | "leaving" | "moving" | "onRow">;
  holding: Pick<HoldingRows, "epoch" | "noteUpload" | "uploads" | "forgetUploads">;
  leaving: Pick<Leaving, "release" | "prefixes">;
  uploads: CheckpointUploads;
  sql: Pick<Postgres, "call" | "isAway">;
  /** Nothing can be decided now, the database was put back, or this host gathers all capsules: no upload begins. */
  isAway: () => boolean;
  clock: Clock;
  log: Log;
  /** Time from a pause, or the start of the daemon, to the upload. */
  afterMs: number;
}

/**
 * How long a capsule paused at `pausedAt` has been due for the bucket. The time before its upload begins anew with the daemon; null:
 * there is no such capsule.
 */
export function overdueMs(
  pausedAt: number | null,
  { startedAt, afterMs, now }: { startedAt: number; afterMs: number; now: number },
): number {
  return pausedAt === null ? 0 : Math.max(0, now - Math.max(pausedAt, startedAt) - afterMs);
}

interface Resting {
  /** When it came to rest in this life of the daemon. */
  sinceTicks: number;
  dueTicks: number;
  failures: number;
  /** The failure of the last attempt. */
  why?: string;
  /** It cannot be uploaded as long as this host is as it is. */
  isRefused?: boolean;
}

interface UnderWay {
  revision: number;
  resting: Resting;
  abort: AbortController;
}

const uploadsAtOnce = 4;
/** After a failure, twice as long after each further one. */
const [pauseMs, pauseMaxMs] = [5_000, 600_000];
/** A capsule whose upload has failed so often, some 15 s after the first time, counts as one that stays. */
const stayingFailures = 3;
/** The same for all capsules, where the bucket does not answer. */
const awayMaxMs = 60_000;
/** For hashes, which are written behind a pause, and for PostgreSQL. */
const soonMs = 1_000;
const sweepMs = 60_000;
const sweptAtOnce = 1_000;

export class Releases {
  readonly #options: ReleasesOptions;
  readonly #resting = new Map<string, Resting>();
  readonly #underWay = new Map<string, UnderWay>();
  /** Prefixes of uploads, until nothing is written there any longer. */
  readonly #prefixes = new Set<string>();
  readonly #ends = new Set<Promise<void>>();
  #cancel = () => {};
  #cancelSweep = () => {};
  #isOpen = false;
  /** The bucket is left alone until then. */
  #awayUntil = Number.NEGATIVE_INFINITY;
  #awayMs = pauseMs;

  constructor(options: ReleasesOptions) {
    this.#options = options;
    options.store.onRow((id) => this.look(id));
  }

  /** Once the service has recovered. */
  start(): void {
    this.#isOpen = true;
    for (const { id } of this.#options.store.all()) this.look(id);
    void this.#sweep();
  }

  /** Capsules that only this host has, and for how long the oldest of them, in this life of the daemon. */
  report(): { waiting: number; oldestMs: number } {
    const { clock } = this.#options;
    const now = clock.ticks();
    let oldest = now;
    const underWay = [...this.#underWay.values()].map(({ resting }) => resting);
    for (const { sinceTicks } of [...this.#resting.values(), ...underWay]) oldest = Math.min(oldest, sinceTicks);
    return { waiting: this.#resting.size + this.#underWay.size, oldestMs: now - oldest };
  }

  /** A capsule that is moved goes before all others, without a rest; where it was tried and has failed, when its next attempt is due. */
  hasten(id: string): void {
    const resting = this.#resting.get(id);
    if (resting === undefined || resting.failures > 0 || resting.dueTicks === Number.NEGATIVE_INFINITY) return;
    this.#resting.set(id, { ...resting, dueTicks: Number.NEGATIVE_INFINITY });
    this.#next();
  }

  /** Why the last attempt has failed; undefined: it has not, or none has ended. */
  failureOf(id: string): string | undefined {
    return this.#resting.get(id)?.why;
  }

  /** Why it stays: this host's files are refused, or some attempts have failed. undefined: it may leave soon. */
  stayOf(id: string): string | undefined {
    const resting = this.#resting.get(id) ?? this.#underWay.get(id)?.resting;
    if (resting === undefined) return undefined;
    return resting.isRefused === true || resting.failures >= stayingFailures ? resting.why : undefined;
  }

  /** Ends all uploads. Resolves when no statement of a release is under way; what was written in the bucket is removed by a later life. */
  async stop(): Promise<void> {
    this.#isOpen = false;
    this.#cancel();
    this.#cancelSweep();
    for (const { abort } of this.#underWay.values()) abort.abort(new Error("the server is stopping"));
    await Promise.all(this.#ends);
  }

  /** After each change of the capsule's row, and of its way. */
  look(id: string): void {
    if (!this.#isOpen) return;
    const { store, clock, afterMs } = this.#options;
    const row = store.get(id);
    const underWay = this.#underWay.get(id);
    const isStaying = store.leaving.has(id) || store.moving.get(id) === "here";
    const isResting = row !== undefined && isReleasable(row) && !isStaying;
    if (underWay !== undefined && (!isResting || underWay.revision !== row.revision))
      underWay.abort.abort(new Error(`capsule ${id} has changed`));
    if (!isResting) this.#resting.delete(id);
    else if (underWay === undefined && !this.#resting.has(id)) {
      const sinceTicks = clock.ticks();
      this.#resting.set(id, { sinceTicks, dueTicks: sinceTicks + afterMs, failures: 0 });
      this.#next();
    }
  }

  #next(): void {
    this.#cancel();
    const { clock, isAway } = this.#options;
    while (this.#isOpen && this.#underWay.size < uploadsAtOnce) {
      const first = this.#soonest();
      if (first === undefined) return;
      const [id, resting] = first;
      const now = clock.ticks();
      const dueTicks = Math.max(resting.dueTicks, this.#awayUntil, isAway() ? now + soonMs : now);
      if (dueTicks > now) {
        this.#cancel = clock.after(dueTicks - now, () => this.#next());
        return;
      }
      this.#resting.delete(id);
      this.#begin(id, resting);
    }
  }

  #soonest(): [id: string, resting: Resting] | undefined {
    let soonest: [string, Resting] | undefined;
    for (const each of this.#resting)
      if (soonest === undefined || each[1].dueTicks < soonest[1].dueTicks) soonest = each;
    return soonest;
  }

  #begin(id: string, resting: Resting): void {
    const row = this.#options.store.get(id);
    if (row === undefined || !isReleasable(row)) return; // its template was deleted meanwhile
    const underWay = { revision: row.revision, resting, abort: new AbortController() };
    this.#underWay.set(id, underWay);
    const end = this.#release(row, underWay.abort.signal)
      .then(
        () => undefined,
        (error: unknown) => this.#failed(id, resting, error, underWay.abort.signal),
      )
      .then((again) => {
        this.#underWay.delete(id);
        this.#ends.delete(end);
        if (again !== undefined && this.#isOpen) this.#resting.set(id, again);
        this.look(id); // it may rest anew
        this.#next();
      });
    this.#ends.add(end);
  }

  async #release({ id, revision }: Capsule, signal: AbortSignal): Promise<void> {
    const { uploads, holding, leaving, clock } = this.#options;
    const files = await uploads.describe(id);
    signal.throwIfAborted();
    const { savedRevision, record, machine, qemuBuild, format, bytes } = files;
    const prefix = `capsules/${id}/${holding.epoch(id)}.${savedRevision}.${randomBytes(4).toString("hex")}`;
    holding.noteUpload(prefix, clock.now());
    this.#prefixes.add(prefix);
    const uploading = uploads.upload(files, prefix, signal);
    // When it has ended nothing is written there any longer, whatever became of it.
    const end = () => void this.#prefixes.delete(prefix);
    try {
      const manifestSha256 = await unlessAborted(uploading, signal);
      this.#awayMs = pauseMs;
      const at = clock.now();
      const of = { prefix, manifestSha256, bytes, at, revision, savedRevision, machine, record, qemuBuild, format };
      await leaving.release(id, revision, of);
    } finally {
      uploading.then(end, end);
    }
  }

  /** Returns the time of the next attempt; undefined: that of a new pause. */
  #failed(id: string, resting: Resting, error: unknown, signal: AbortSignal): Resting | undefined {
    const { clock, log, store } = this.#options;
    if (signal.aborted || store.leaving.has(id)) return undefined; // Leaving asks again
    const now = clock.ticks();
    if (error instanceof CapsuleError && error.code === "invalid_state") return { ...resting, dueTicks: now + soonMs };
    const failures = resting.failures + 1;
    const isAway = error instanceof CapsuleError && error.code === "unavailable";
    log.error({ err: error, capsule: id }, "a paused capsule could not be released; it will be tried again");
    if (isAway && this.#awayUntil <= now) {
      this.#awayUntil = now + this.#awayMs;
      this.#awayMs = Math.min(2 * this.#awayMs, awayMaxMs);
    }
    const waitMs = isAway ? 0 : Math.min(pauseMs * 2 ** resting.failures, pauseMaxMs);
    const isRefused = error instanceof CapsuleError && error.code === "conflict";
    return { ...resting, failures, dueTicks: now + waitMs, why: messageOf(error), isRefused };
  }

  /** Uploads that this or an earlier life has begun, and that no row names, are garbage. Never rejects. */
  async #sweep(): Promise<void> {
    const { holding, leaving, sql, log, clock } = this.#options;
    try {
      const needed = new Set([...this.#prefixes, ...leaving.prefixes()]);
      const left = holding.uploads(sweptAtOnce).filter((prefix) => !needed.has(prefix));
      if (left.length > 0) {
        await sql.call("add_garbage", [left], { what: "note what the bucket need not keep" });
        holding.forgetUploads(left);
      }
    } catch (error) {
      if (!sql.isAway) log.error({ err: error }, "uploads that have failed could not be noted as garbage");
    }
    if (this.#isOpen) this.#cancelSweep = clock.after(sweepMs, () => void this.#sweep());
  }
}

/** The work goes on alone when the signal fires. */
async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const abort = () => reject(signal.reason);
  signal.addEventListener("abort", abort);
  if (signal.aborted) abort();
  work.catch(() => {});
  aborted.catch(() => {});
  try {
    return await Promise.race([work, aborted]);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}
