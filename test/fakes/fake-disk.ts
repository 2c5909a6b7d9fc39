/** A file system of which a test says how much is free, and to which it writes. */
import { DiskSpace } from "../../src/host/disk/disk-space.ts";

export class FakeDisk {
  freeBytes: number;
  readonly space: DiskSpace;
  /** Sizes of what is kept only while there is room. */
  readonly reclaimable: number[] = [];

  constructor(freeBytes: number, reserveBytes: number) {
    this.freeBytes = freeBytes;
    this.space = new DiskSpace({
      ...{ folder: "/nowhere", reserveBytes },
      freeNow: () => this.freeBytes,
      reclaim: async () => {
        const bytes = this.reclaimable.shift();
        this.freeBytes += bytes ?? 0;
        return bytes !== undefined;
      },
      reclaimableBytes: async () => this.reclaimable.reduce((sum, bytes) => sum + bytes, 0),
    });
  }

  /** A file that grows. */
  file(): { bytes: () => number; write: (bytes: number) => void } {
    let size = 0;
    return {
      bytes: () => size,
      write: (bytes) => {
        size += bytes;
        this.freeBytes -= bytes;
      },
    };
  }
}
