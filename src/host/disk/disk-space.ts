/**
 * Free space of the data folder's file system, and the reserve of it that only pauses may use. A writer reserves its bytes before
 * it writes. A reservation counts until it is disposed of, without the bytes that its files take already: those are missing
 * from the free space. Look and count are in one tick, so that two writers never share a byte.
 */
import { readdirSync, statfsSync, statSync } from "node:fs";
import { join } from "node:path";
import { CapsuleError } from "../../wire/errors.ts";
import type { ReserveShare } from "../host.ts";
import { isMissing } from "./files.ts";
import { ReserveParts } from "./reserve-parts.ts";

/** Kept free by every change, for the database and the file system's own metadata. */
const slackBytes = 64 << 20;

export interface DiskSpaceOptions {
  /** The data folder. */
  folder: string;
  /** Space that only pauses may use. */
  reserveBytes: number;
  /** Free bytes of a folder's file system; of this machine by default. It neither waits nor writes. */
  freeNow?: (folder: string) => number;
  /** Removes something that is kept only while there is room; false when there is nothing. */
  reclaim?: () => Promise<boolean>;
  /** Bytes on disk of all that `reclaim` would remove. */
  reclaimableBytes?: () => Promise<number>;
}

/** Bytes that will be written. Dispose of it when they are, before the files are renamed. */
export interface Reservation extends Disposable {
  /** As many bytes in all, where they are more than before. Throws as `reserve`; then it is as before. */
  grow(bytes: number): void;
  /** All is written. The bytes of a pause count for its owner from now on, until `forgetPause`. */
  keep(): void;
}

interface Limit {
  isPause: boolean;
  /** Most bytes, where so many are free beside all reservations. Without effects. */
  allowedBytes: (freeBytes: number) => number;
  /** Called with the bytes that are free, before they are asked for. */
  see?: (freeBytes: number) => void;
  /** Called when they are promised. */
  take?: (bytes: number, freeBytes: number) => void;
  /** Why it was refused. */
  describe: (leftBytes: number, allowedBytes: number) => string;
  what: string;
}

interface Promised {
  isPause: boolean;
  bytes: number;
  /** The part of them that is on disk already. */
  written: () => number;
}

export class DiskSpace {
  readonly reserveBytes: number;
  readonly #folder: string;
  readonly #freeNow: (folder: string) => number;
  /** Frees space by removing something that is kept only while there is room; false when there is nothing. */
  readonly reclaim: () => Promise<boolean>;
  readonly #reclaimableBytes: () => Promise<number>;
  /** Refusals because of what is free, not of whose it is, and whether so many bytes more would do. */
  readonly #shortages = new WeakMap<object, (moreBytes: number) => boolean>();
  readonly #promised = new Set<Promised>();
  readonly #parts: ReserveParts;

  constructor({
    folder,
    reserveBytes,
    freeNow = freeBytesOf,
    reclaim = () => Promise.resolve(false),
    reclaimableBytes = () => Promise.resolve(0),
  }: DiskSpaceOptions) {
    this.#reclaimableBytes = reclaimableBytes;
    this.reclaim = reclaim;
    this.#folder = folder;
    this.reserveBytes = reserveBytes;
    this.#parts = new ReserveParts(reserveBytes);
    this.#freeNow = freeNow;
  }

  /** Bytes that an unprivileged process could write now, without those that are promised to others than pauses. */
  get freeBytes(): number {
    return Math.max(0, this.#freeNow(this.#folder) - this.#promisedBytes(false));
  }

  /** The result of `reserve`, called again after each reclaim while it lacks space. Nothing is reclaimed where all is too little. */
  async orReclaim<T>(reserve: () => T): Promise<T> {
    for (;;) {
      try {
        return reserve();
      } catch (error) {
        const wouldFit = this.#shortages.get(error as object);
        if (!wouldFit?.(await this.#reclaimableBytes()) || !(await this.reclaim())) throw error;
      }
    }
  }

  /**
   * Throws CapsuleError("no_space") unless `bytes` more fit beside the reserve and all reservations. `written`: bytes of them
   * that are on disk, read without waiting.
   */
  reserve(bytes: number, what: string, written?: () => number): Reservation {
    const kept = this.reserveBytes === 0 ? "" : `, ${mib(this.reserveBytes)} MiB of them for pauses`;
    const describe = (leftBytes: number) => `${mib(leftBytes)} MiB are free${kept}`;
    return this.#reserve(
      bytes,
      { isPause: false, allowedBytes: (freeBytes) => freeBytes - this.reserveBytes, describe, what },
      written,
    );
  }

  /** The same for the pause of a capsule, which may use its owner's part of the reserve. */
  reserveForPause(
    { id, share }: { id: string; share: ReserveShare },
    bytes: number,
    what: string,
    written = () => 0,
  ): Reservation {
    const limit: Limit = {
      isPause: true,
      allowedBytes: (freeBytes) => this.#parts.allowedBytes(id, share, freeBytes),
      see: (freeBytes) => this.#parts.see(id, freeBytes),
      take: (taken, freeBytes) => this.#parts.take(id, share, taken, freeBytes),
      describe: (_leftBytes, allowedBytes) => `${mib(allowedBytes)} MiB are free for its team`,
      what,
    };
    const reservation = this.#reserve(bytes, limit, written);
    let isKept = false;
    return {
      grow: (wanted) => reservation.grow(wanted),
      keep: () => {
        isKept = true;
        this.#parts.lower(id, written());
      },
      [Symbol.dispose]: () => {
        reservation[Symbol.dispose]();
        if (!isKept) this.#parts.forget(id);
      },
    };
  }

  /** To be called when the checkpoint of a capsule is gone. */
  forgetPause(id: string): void {
    this.#parts.forget(id);
  }

  #reserve(bytes: number, limit: Limit, written = () => 0): Reservation {
    this.#require(bytes, limit);
    const promised = { isPause: limit.isPause, bytes, written };
    this.#promised.add(promised);
    return {
      grow: (wanted) => {
        if (wanted <= promised.bytes) return;
        this.#require(wanted - written(), limit, promised);
        promised.bytes = wanted;
      },
      keep() {},
      [Symbol.dispose]: () => void this.#promised.delete(promised),
    };
  }

  /** `own`: a reservation that these bytes replace. */
  #require(bytes: number, limit: Limit, own?: Promised): void {
    const { isPause, allowedBytes, see, take, describe, what } = limit;
    const freeNow = this.#freeNow(this.#folder);
    const leftBytes = this.#leftBytes(freeNow, isPause, own);
    const freeBytes = Math.max(0, leftBytes - slackBytes);
    see?.(freeBytes);
    const mostBytes = allowedBytes(freeBytes);
    if (bytes <= mostBytes) {
      take?.(bytes, freeBytes);
      return;
    }
    const message = `${what} needs ${mib(bytes)} MiB of disk and only ${describe(leftBytes, mostBytes)}`;
    const refusal = new CapsuleError("no_space", message, { details: { needed_bytes: bytes, free_bytes: leftBytes } });
    const wouldFit = (moreBytes: number) =>
      bytes <= allowedBytes(Math.max(0, this.#leftBytes(freeNow + moreBytes, isPause, own) - slackBytes));
    if (bytes > freeBytes - this.reserveBytes) this.#shortages.set(refusal, wouldFit);
    throw refusal;
  }

  /**
   * Free beside all reservations but `own`. Bytes that are written between the two looks count twice. Guests write without a
   * reservation: where they have taken what was promised to a start or capture, a pause counts as much of the promise as is free
   * beside the reserve once all pauses are written.
   */
  #leftBytes(freeNow: number, isPause: boolean, own?: Promised): number {
    const [ofPauses, ofOthers] = [this.#promisedBytes(true), this.#promisedBytes(false)];
    const ofReserve = this.reserveBytes - this.#parts.takenBytes;
    const besideBytes = Math.max(0, freeNow - slackBytes - ofPauses - ofReserve);
    const promised = ofPauses + (isPause ? Math.min(ofOthers, besideBytes) : ofOthers);
    return Math.max(0, freeNow - promised + (own === undefined ? 0 : unwritten(own)));
  }

  #promisedBytes(isPause: boolean): number {
    const promised = [...this.#promised].filter((each) => each.isPause === isPause);
    return promised.reduce((sum, each) => sum + unwritten(each), 0);
  }
}

function unwritten({ bytes, written }: Promised): number {
  return Math.max(0, bytes - written());
}

/** Bytes that a folder's files occupy now; 0 when there is none. Does not wait. */
export function writtenIn(folder: string): number {
  try {
    return readdirSync(folder).reduce((sum, name) => sum + writtenTo(join(folder, name)), 0);
  } catch (error) {
    if (isMissing(error)) return 0;
    throw error;
  }
}

/** The same of a file. */
export function writtenTo(path: string): number {
  return (statSync(path, { throwIfNoEntry: false })?.blocks ?? 0) * 512;
}

/** Takes microseconds: the kernel has the numbers of a mounted file system in memory. */
function freeBytesOf(folder: string): number {
  const { bavail, bsize } = statfsSync(folder);
  return bavail * bsize;
}

function mib(bytes: number): number {
  return Math.ceil(bytes / (1 << 20));
}
