/**
 * SHA-256 of each 4 MiB of a file: made in the background, and compared while the file is loaded. The digests run on the thread
 * pool; holes of sparse files are not read.
 */
import { createHash } from "node:crypto";
import { open } from "node:fs/promises";
import { runHelper } from "../oom-score.ts";
import type { Pieces } from "../vmm.ts";

export const pieceBytes = 4 << 20;
/** Digests of one file in flight; each holds a copy of its piece. */
const maxDigests = 2;
/** A map of holes beyond it, some 10 000 extents, is not used, and the file is read whole: parsing stops the event loop. */
const maxMapBytes = 1 << 20;
const mapDeadlineMs = 60_000;

export interface Hashing {
  signal?: AbortSignal | undefined;
  /** Awaited after each piece that was read, with the milliseconds that it took. */
  pause?: (tookMs: number) => Promise<void>;
}

/** The digest of `bytes`, which may be reused as soon as this has returned. */
export async function sha256Of(bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  return Buffer.from(await crypto.subtle.digest("SHA-256", bytes)).toString("hex");
}

/** Reads a file that does not change and hashes its pieces. */
export async function hashPieces(path: string, { signal, pause }: Hashing = {}): Promise<Pieces> {
  await using file = await open(path, "r");
  const { size, blocks } = await file.stat();
  const isHole = blocks * 512 < size ? await holesOf(path, size) : () => false;
  const sha256: string[] = [];
  const buffer = Buffer.allocUnsafeSlow(Math.min(pieceBytes, size));
  for (let at = 0; at < size; at += pieceBytes) {
    signal?.throwIfAborted();
    const length = Math.min(pieceBytes, size - at);
    if (isHole(at, length)) {
      sha256.push(sha256OfZeros(length));
      continue;
    }
    const before = performance.now();
    for (let got = 0; got < length; ) {
      const { bytesRead } = await file.read(buffer, got, length - got, at + got);
      if (bytesRead === 0) throw new Error(`${path} has become shorter while it was read`);
      got += bytesRead;
    }
    sha256.push(await sha256Of(buffer.subarray(0, length)));
    await pause?.(performance.now() - before);
  }
  return { bytes: size, sha256 };
}

const zeroHashes = new Map<number, string>();

function sha256OfZeros(length: number): string {
  const known = length === pieceBytes ? zeroHashes.get(length) : undefined;
  const sha256 = known ?? createHash("sha256").update(Buffer.alloc(length)).digest("hex");
  if (length === pieceBytes) zeroHashes.set(length, sha256);
  return sha256;
}

/** Says of a range whether the file has no data there. By qemu-img, since Node has no lseek. */
async function holesOf(path: string, size: number): Promise<(at: number, length: number) => boolean> {
  try {
    const args = ["map", "--output=json", "--force-share", "-f", "raw", path];
    const { stdout } = await runHelper("qemu-img", args, { maxBuffer: maxMapBytes, timeout: mapDeadlineMs });
    const extents = JSON.parse(stdout) as { start: number; length: number; data: boolean }[];
    const isFilled = new Uint8Array(Math.ceil(size / pieceBytes));
    for (const { start, length, data } of extents) {
      if (data) isFilled.fill(1, Math.floor(start / pieceBytes), Math.ceil((start + length) / pieceBytes));
    }
    return (at) => isFilled[at / pieceBytes] === 0;
  } catch {
    return () => false;
  }
}

/** Compares a file's bytes, given in order, with the hashes of its pieces. */
export class PieceCheck {
  readonly #expected: Pieces;
  readonly #refuse: (why: string) => Error;
  readonly #buffer: Buffer<ArrayBuffer>;
  #filled = 0;
  #index = 0;
  #digests: Promise<void>[] = [];

  constructor(expected: Pieces, refuse: (why: string) => Error) {
    this.#expected = expected;
    this.#refuse = refuse;
    this.#buffer = Buffer.allocUnsafeSlow(Math.min(pieceBytes, expected.bytes));
  }

  /** The bytes may be reused when it has resolved. Rejects as soon as a piece is known to be wrong. */
  async add(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.length; ) {
      const part = bytes.subarray(at, at + this.#buffer.length - this.#filled);
      if (part.length === 0) throw this.#refuse("it is longer than when it was saved");
      this.#buffer.set(part, this.#filled);
      this.#filled += part.length;
      at += part.length;
      if (this.#filled === this.#buffer.length) await this.#digest();
    }
  }

  /** Rejects unless all bytes were there and right. */
  async finish(): Promise<void> {
    if (this.#filled > 0) await this.#digest();
    await Promise.all(this.#digests);
    if (this.#index !== this.#expected.sha256.length) throw this.#refuse("it is shorter than when it was saved");
  }

  async #digest(): Promise<void> {
    const index = this.#index++;
    const digest = sha256Of(this.#buffer.subarray(0, this.#filled)).then((sha256) => {
      if (sha256 === this.#expected.sha256[index]) return;
      const from = index * pieceBytes;
      throw this.#refuse(`its bytes from ${from} on are not those that were saved: their SHA-256 is another`);
    });
    digest.catch(() => {}); // seen by a later add or by finish
    this.#filled = 0;
    this.#digests.push(digest);
    if (this.#digests.length >= maxDigests) await this.#digests.shift();
  }
}
