/** Free space of the data folder's file system, and the reserve of it that only pauses may use. */
import { statfs } from "node:fs/promises";
import { CapsuleError } from "../../wire/errors.ts";

/** Kept free by every change, for the database and the file system's own metadata. */
const slackBytes = 64 << 20;

export interface DiskSpaceOptions {
  /** The data folder. */
  folder: string;
  /** Space that only pauses may use. */
  reserveBytes: number;
}

export class DiskSpace {
  readonly reserveBytes: number;
  readonly #folder: string;

  constructor({ folder, reserveBytes }: DiskSpaceOptions) {
    this.#folder = folder;
    this.reserveBytes = reserveBytes;
  }

  /** Bytes that an unprivileged process could write now. */
  async freeBytes(): Promise<number> {
    const { bavail, bsize } = await statfs(this.#folder);
    return bavail * bsize;
  }

  /** Throws CapsuleError("no_space") unless `bytes` more fit beside the reserve. */
  require(bytes: number, what: string): Promise<void> {
    return this.#require(bytes, this.reserveBytes, what);
  }

  /** The same for a pause, which may use the reserve. */
  requireForPause(bytes: number, what: string): Promise<void> {
    return this.#require(bytes, 0, what);
  }

  async #require(bytes: number, reserveBytes: number, what: string): Promise<void> {
    const freeBytes = await this.freeBytes();
    if (freeBytes >= bytes + slackBytes + reserveBytes) return;
    const kept = reserveBytes === 0 ? "" : `, ${mib(reserveBytes)} MiB of them for pauses`;
    const message = `${what} needs ${mib(bytes)} MiB of disk and only ${mib(freeBytes)} MiB are free${kept}`;
    throw new CapsuleError("no_space", message, { details: { needed_bytes: bytes, free_bytes: freeBytes } });
  }
}

function mib(bytes: number): number {
  return Math.ceil(bytes / (1 << 20));
}
