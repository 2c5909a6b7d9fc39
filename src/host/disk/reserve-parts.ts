/**
 * The reserve of the disk, divided among the owners with running capsules (docs/adr/0035). Each may take an equal part of the sum
 * of the bytes that are free and those that these owners' checkpoints have taken. So the part of one owner is the same whatever
 * the others take of theirs.
 *
 * Bytes count as taken from the reserve while their checkpoint is there, until the whole reserve is free. All bytes of a pause
 * count as taken from its owner's part while the owner is over its quota.
 */
import type { ReserveShare } from "../host.ts";

interface Taken {
  owner: string;
  /** Size of the checkpoint. */
  bytes: number;
  /** Its bytes that did not fit beside the reserve. */
  reserveBytes: number;
  /** The owner was over its quota, so all bytes count while it is. */
  isOverQuota: boolean;
}

export class ReserveParts {
  readonly #reserveBytes: number;
  /** By capsule: one entry for each checkpoint that has taken something. */
  readonly #taken = new Map<string, Taken>();

  constructor(reserveBytes: number) {
    this.#reserveBytes = reserveBytes;
  }

  /** Bytes of the reserve that pauses have taken. */
  get takenBytes(): number {
    return [...this.#taken.values()].reduce((sum, { reserveBytes }) => sum + reserveBytes, 0);
  }

  /** Most bytes that a pause may write. `freeBytes`: beside all that is promised to others. */
  allowedBytes(id: string, { owner, isOverQuota, sharers }: ReserveShare, freeBytes: number): number {
    const isWhole = freeBytes >= this.#reserveBytes;
    const ofReserve = new Map([...sharers, owner].map((each) => [each, 0]));
    let counted = 0;
    for (const [capsule, taken] of this.#taken) {
      if (capsule === id) continue;
      const before = ofReserve.get(taken.owner);
      const reserveBytes = isWhole ? 0 : taken.reserveBytes;
      if (before !== undefined) ofReserve.set(taken.owner, before + reserveBytes);
      if (taken.owner === owner) counted += isOverQuota && taken.isOverQuota ? taken.bytes : reserveBytes;
    }
    const part = equalPart(Math.min(freeBytes, this.#reserveBytes), [...ofReserve.values()]);
    const besideBytes = isOverQuota ? 0 : freeBytes - this.#reserveBytes;
    return Math.max(0, besideBytes) + Math.max(0, part - counted);
  }

  /** Counts a pause that was allowed. A second call for the same capsule replaces the first. */
  take(id: string, { owner, isOverQuota }: ReserveShare, bytes: number, freeBytes: number): void {
    const besideBytes = Math.max(0, freeBytes - this.#reserveBytes);
    this.#taken.set(id, { owner, bytes, reserveBytes: Math.max(0, bytes - besideBytes), isOverQuota });
  }

  /** Only so many bytes were written. */
  lower(id: string, bytes: number): void {
    const taken = this.#taken.get(id);
    if (taken === undefined || bytes >= taken.bytes) return;
    taken.reserveBytes = Math.max(0, taken.reserveBytes - (taken.bytes - bytes));
    taken.bytes = bytes;
  }

  /** The capsule's checkpoint is gone. */
  forget(id: string): void {
    this.#taken.delete(id);
  }

  /** Nothing of the reserve counts as taken once all of it is free beside the pause of capsule `beside`. */
  see(beside: string, freeBytes: number): void {
    if (freeBytes < this.#reserveBytes) return;
    for (const [id, taken] of this.#taken) {
      if (id === beside) continue;
      taken.reserveBytes = 0;
      if (!taken.isOverQuota) this.#taken.delete(id);
    }
  }
}

/**
 * The part of each, so that what is free fills all up to it. `taken`: bytes that each has already; more than a part stays, and
 * is divided no further.
 */
export function equalPart(freeBytes: number, taken: readonly number[]): number {
  const descending = taken.toSorted((a, b) => b - a);
  let wholeBytes = descending.reduce((sum, bytes) => sum + bytes, freeBytes);
  for (const [index, bytes] of descending.entries()) {
    const part = wholeBytes / (descending.length - index);
    if (bytes <= part) return part;
    wholeBytes -= bytes;
  }
  return 0;
}
