/**
 * Writes empty qcow2 overlays as bytes: a capsule's disk layer is made in 1 ms, without starting qemu-img. Checks the
 * header of a layer that a QEMU has written: a changed header could name any file of the machine as backing file. The
 * rest of the format is left to QEMU. Layout of version 3, big-endian:
 *
 *      0      header, header extensions, name of the backing file
 *      64 K   refcount table, one entry: the block below
 *      128 K  refcount block: marks these four clusters as used
 *      192 K  L1 table, all zero: every read goes to the backing file
 *
 * https://gitlab.com/qemu-project/qemu/-/blob/master/docs/interop/qcow2.rst
 */
import { closeSync, openSync, readSync } from "node:fs";

export interface Overlay {
  /** Size of the guest's disk; at least the backing file's size. */
  sizeBytes: number;
  /** Relative names are relative to the overlay's folder. */
  backingFile: string;
  backingFormat: "raw" | "qcow2";
}

const clusterBits = 16;
const clusterBytes = 1 << clusterBits;
const headerBytes = 104;
/** One L1 entry maps a cluster of L2 entries, 8 bytes each. */
const bytesPerL1Entry = (clusterBytes / 8) * clusterBytes;
/** Keeps the L1 table within its cluster: 4 TiB. */
const sizeLimitBytes = (clusterBytes / 8) * bytesPerL1Entry;
const backingNameLimitBytes = 1_023;
const backingFormatExtension = 0xe2792aca;
/** Feature names for error messages; QEMU adds this extension unasked. */
const featureNamesExtension = 0x6803f857;
/** Length of QEMU's headers. A longer one would have fields that this check does not know. */
const headerLimitBytes = 112;

/** The bytes of an empty disk layer on top of a backing file. */
export function emptyOverlay({ sizeBytes, backingFile, backingFormat }: Overlay): Buffer {
  const name = Buffer.from(backingFile);
  if (!Number.isSafeInteger(sizeBytes) || sizeBytes <= 0 || sizeBytes > sizeLimitBytes || sizeBytes % 512 !== 0) {
    throw new RangeError(`A disk of ${sizeBytes} bytes is not possible: whole sectors, up to ${sizeLimitBytes}`);
  }
  if (name.length === 0 || name.length > backingNameLimitBytes || name.includes(0)) {
    throw new RangeError(`The backing file's name must have 1 to ${backingNameLimitBytes} bytes`);
  }
  const format = Buffer.from(backingFormat);
  const nameOffset = headerBytes + 8 + roundUp(format.length, 8) + 8;
  const image = Buffer.alloc(4 * clusterBytes);
  image.write("QFI\xfb", 0, "latin1");
  image.writeUInt32BE(3, 4); // version
  image.writeBigUInt64BE(BigInt(nameOffset), 8);
  image.writeUInt32BE(name.length, 16);
  image.writeUInt32BE(clusterBits, 20);
  image.writeBigUInt64BE(BigInt(sizeBytes), 24);
  image.writeUInt32BE(Math.ceil(sizeBytes / bytesPerL1Entry), 36); // L1 entries
  image.writeBigUInt64BE(BigInt(3 * clusterBytes), 40); // L1 table
  image.writeBigUInt64BE(BigInt(clusterBytes), 48); // refcount table
  image.writeUInt32BE(1, 56); // its clusters
  image.writeUInt32BE(4, 96); // refcounts of 2^4 bits
  image.writeUInt32BE(headerBytes, 100);
  image.writeUInt32BE(backingFormatExtension, headerBytes);
  image.writeUInt32BE(format.length, headerBytes + 4);
  format.copy(image, headerBytes + 8);
  name.copy(image, nameOffset);
  image.writeBigUInt64BE(BigInt(2 * clusterBytes), clusterBytes);
  for (let cluster = 0; cluster < 4; cluster++) image.writeUInt16BE(1, 2 * clusterBytes + 2 * cluster);
  return image;
}

/** The size of the disk that a layer's header names, in bytes. The header's word: QEMU may have changed it. */
export function diskBytesOf(path: string): number {
  const [file, start] = [openSync(path, "r"), Buffer.alloc(32)];
  try {
    readSync(file, start, 0, start.length, 0);
  } finally {
    closeSync(file);
  }
  return Number(start.readBigUInt64BE(24));
}

/**
 * Compares a layer's first cluster `start` with an expected overlay and names the difference; undefined when there is
 * none. It refuses each feature through which a program that opens the layer could read another file or misread the
 * rest: another backing file, an external data file, encryption, bitmaps, snapshots, unknown features.
 */
export function overlayProblem(start: Buffer, { sizeBytes, backingFile, backingFormat }: Overlay): string | undefined {
  if (start.length < clusterBytes || start.toString("latin1", 0, 4) !== "QFI\xfb") return "it is not a qcow2 file";
  const word = (at: number) => start.readUInt32BE(at);
  const long = (at: number) => start.readBigUInt64BE(at);
  if (word(4) !== 3) return `its version is ${word(4)}`;
  if (word(20) !== clusterBits) return `its clusters have 2^${word(20)} bytes`;
  if (long(24) !== BigInt(sizeBytes)) return `its disk has ${long(24)} bytes instead of ${sizeBytes}`;
  if (word(32) !== 0) return "it is encrypted";
  if (word(36) !== Math.ceil(sizeBytes / bytesPerL1Entry)) return `its table has ${word(36)} entries`;
  if (word(60) !== 0 || long(64) !== 0n) return "it has snapshots";
  if (long(72) !== 0n) return `it has incompatible features: 0x${long(72).toString(16)}`;
  if (long(88) !== 0n) return `it has extensions to be cleared: 0x${long(88).toString(16)}`;
  if (word(96) !== 4) return `its refcounts have 2^${word(96)} bits`;
  const length = word(100);
  if (length < headerBytes || length > headerLimitBytes || length % 8 !== 0) return `its header has ${length} bytes`;
  if (length > headerBytes && start.readUInt8(headerBytes) !== 0) return "it has an unknown compression type";
  if (long(8) > BigInt(clusterBytes - backingNameLimitBytes) || word(16) > backingNameLimitBytes) {
    return "its backing file's name is outside the first cluster";
  }
  const nameAt = Number(long(8));
  const name = start.subarray(nameAt, nameAt + word(16));
  if (!name.equals(Buffer.from(backingFile))) return `its backing file is ${JSON.stringify(name.toString("latin1"))}`;
  return extensionProblem(start, length, nameAt, backingFormat);
}

/** Extensions: type u32, length u32, data to a multiple of 8 bytes; the first of type 0 is the last. */
function extensionProblem(start: Buffer, from: number, end: number, format: string): string | undefined {
  let foundFormat: string | undefined;
  for (let at = from; at + 8 <= end; ) {
    const [type, length] = [start.readUInt32BE(at), start.readUInt32BE(at + 4)];
    if (type === 0) return foundFormat === format ? undefined : `its backing file has the format ${foundFormat}`;
    if (length > end - at - 8) return "its extensions are damaged";
    if (type === backingFormatExtension) foundFormat = start.toString("latin1", at + 8, at + 8 + length);
    else if (type !== featureNamesExtension) return `it has an extension 0x${type.toString(16)}`;
    at += 8 + roundUp(length, 8);
  }
  return "its extensions have no end mark";
}

function roundUp(value: number, step: number): number {
  return Math.ceil(value / step) * step;
}
