/**
 * Empty qcow2 overlays, written as bytes: a capsule's own disk layer is made in a millisecond, without a program to
 * start. Everything else about the format is QEMU's business. Layout of version 3, big-endian:
 *
 *      0      header, header extensions, name of the backing file
 *      64 K   refcount table, one entry: the block below
 *      128 K  refcount block: these four clusters are in use
 *      192 K  L1 table, all zero: every read goes to the backing file
 *
 * https://gitlab.com/qemu-project/qemu/-/blob/master/docs/interop/qcow2.rst
 */

export interface Overlay {
  /** The disk as the guest sees it; at least the backing file's size. */
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

function roundUp(value: number, step: number): number {
  return Math.ceil(value / step) * step;
}
