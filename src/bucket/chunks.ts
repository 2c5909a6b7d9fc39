/** Chunks: a file's pieces of 4 MiB, as they are hashed too. Pieces of zeros are known by their hash and not stored. */
import { createHash } from "node:crypto";

/** As the pieces of a checkpoint's `hashes`. */
export const chunkBytes = 4 << 20;
/** The unit in which zeros become holes again. */
const holeBytes = 64 * 1024;

const zeros = Buffer.alloc(chunkBytes);
const zeroHashes = new Map<number, string>();

export function isZero(bytes: Uint8Array): boolean {
  return zeros.compare(bytes, 0, bytes.length, 0, bytes.length) === 0;
}

/** Whether the hash is that of so many zeros. */
export function isZeroHash(sha256: string, bytes: number): boolean {
  let known = zeroHashes.get(bytes);
  if (known === undefined) {
    known = createHash("sha256").update(zeros.subarray(0, bytes)).digest("hex");
    if (bytes === chunkBytes) zeroHashes.set(bytes, known);
  }
  return known === sha256;
}

/** The parts of a chunk that are not zeros, as begin and end. */
export function* filledParts(bytes: Uint8Array): Generator<[number, number]> {
  let begin: number | undefined;
  for (let at = 0; at < bytes.length; at += holeBytes) {
    const isHole = isZero(bytes.subarray(at, at + holeBytes));
    if (isHole && begin !== undefined) yield [begin, at];
    if (isHole) begin = undefined;
    else begin ??= at;
  }
  if (begin !== undefined) yield [begin, bytes.length];
}

/** How many chunks a file of so many bytes has. */
export function chunkCount(bytes: number): number {
  return Math.ceil(bytes / chunkBytes);
}

/** The length of a file's chunk. */
export function chunkLength(fileBytes: number, index: number): number {
  return Math.min(chunkBytes, fileBytes - index * chunkBytes);
}
