/**
 * A qcow2 file that contains only a saved device state, as an internal snapshot, which QEMU can load at any time. Layout of
 * version 3, in clusters, big-endian:
 *
 *      0   header                      4   snapshot table, one entry
 *      1   refcount table, one entry   5   L1 table of the snapshot: after the disk's entry that of the device state
 *      2   refcount block              6   L2 table of the device state
 *      3   L1 table of the disk        7   the device state
 *
 * https://gitlab.com/qemu-project/qemu/-/blob/master/docs/interop/qcow2.rst
 */
/** Name of the snapshot, and its id. */
export const snapshotTag = "vm";

const clusterBits = 12;
const clusterBytes = 1 << clusterBits;
/** The bytes that one L2 table covers. */
const stateLimitBytes = (clusterBytes / 8) * clusterBytes;
const headerBytes = 104;
/** Size of the file's disk, which is not used. */
const diskBytes = clusterBytes;
const dataCluster = 7;
const entryHeadBytes = 40;
const extraBytes = 24;
/** QCOW_OFLAG_COPIED: the refcount is exactly one. */
const isCopied = 1n << 63n;
const at = (cluster: number) => BigInt(cluster * clusterBytes);

/** The file's bytes. */
export function snapshotFile(state: Uint8Array): Buffer {
  if (state.length > stateLimitBytes) throw new RangeError(`A device state of ${state.length} bytes is not possible`);
  const clusters = Math.ceil(state.length / clusterBytes);
  const image = Buffer.alloc((dataCluster + clusters) * clusterBytes);
  writeHeader(image);
  image.writeBigUInt64BE(at(2), clusterBytes);
  for (let cluster = 0; cluster < dataCluster + clusters; cluster++) {
    image.writeUInt16BE(1, 2 * clusterBytes + 2 * cluster);
  }
  writeEntry(image.subarray(4 * clusterBytes), state.length);
  image.writeBigUInt64BE(at(6) | isCopied, 5 * clusterBytes + 8);
  for (let cluster = 0; cluster < clusters; cluster++) {
    image.writeBigUInt64BE(at(dataCluster + cluster) | isCopied, 6 * clusterBytes + 8 * cluster);
  }
  image.set(state, dataCluster * clusterBytes);
  return image;
}

function writeHeader(image: Buffer): void {
  image.write("QFI\xfb", 0, "latin1");
  image.writeUInt32BE(3, 4); // version
  image.writeUInt32BE(clusterBits, 20);
  image.writeBigUInt64BE(BigInt(diskBytes), 24);
  image.writeUInt32BE(2, 36); // L1 entries
  image.writeBigUInt64BE(at(3), 40);
  image.writeBigUInt64BE(at(1), 48);
  image.writeUInt32BE(1, 56); // clusters of the refcount table
  image.writeUInt32BE(1, 60); // snapshots
  image.writeBigUInt64BE(at(4), 64);
  image.writeUInt32BE(4, 96); // refcounts have 2^4 bits
  image.writeUInt32BE(headerBytes, 100);
}

function writeEntry(entry: Buffer, stateBytes: number): void {
  entry.writeBigUInt64BE(at(5), 0);
  entry.writeUInt32BE(2, 8); // L1 entries
  entry.writeUInt16BE(snapshotTag.length, 12); // id
  entry.writeUInt16BE(snapshotTag.length, 14); // name
  entry.writeUInt32BE(stateBytes, 32);
  entry.writeUInt32BE(extraBytes, 36);
  entry.writeBigUInt64BE(BigInt(stateBytes), entryHeadBytes);
  entry.writeBigUInt64BE(BigInt(diskBytes), entryHeadBytes + 8);
  entry.writeBigInt64BE(-1n, entryHeadBytes + 16); // no count of instructions
  entry.write(`${snapshotTag}${snapshotTag}`, entryHeadBytes + extraBytes, "latin1");
}
