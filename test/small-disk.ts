/** A disk that a test can fill. */
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, rmSync, statfsSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const mib = 1 << 20;
/** A process that was killed keeps a file system busy until the kernel has closed its files. */
const busyMs = 10_000;
const pauseMs = 50;

/** Tries again while the file system is busy. Throws when something has held a file of it open for 10 s. */
export function unmount(path: string, ...options: string[]): void {
  for (const beganMs = performance.now(); ; ) {
    const { status, stderr } = spawnSync("umount", [...options, path], { encoding: "utf8" });
    if (status === 0) return;
    if (!/busy/.test(stderr) || performance.now() - beganMs > busyMs) throw new Error(stderr);
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, pauseMs);
  }
}

/**
 * A small file system in a loop device. tmpfs would not do: a hole that is read through a mapping takes space there.
 */
export class SmallDisk {
  readonly #folder = mkdtempSync(join(tmpdir(), "capsule-disk-"));
  readonly path = join(this.#folder, "mounted");
  readonly #bytes: number;

  constructor(mebibytes = 640) {
    this.#bytes = mebibytes * mib;
  }

  /** Mounts it; returns the reason when that fails. */
  mount(): string | undefined {
    const image = join(this.#folder, "image");
    try {
      writeFileSync(image, "");
      truncateSync(image, this.#bytes);
      mkdirSync(this.path);
      execFileSync("mke2fs", ["-q", "-t", "ext4", "-m", "0", image], { stdio: "pipe" });
      execFileSync("mount", ["-o", "loop", image, this.path], { stdio: "pipe" });
      return undefined;
    } catch (error) {
      rmSync(this.#folder, { recursive: true });
      return `a loop device cannot be mounted: ${String(error).trim().split("\n").at(-1)}`;
    }
  }

  /** Idempotent. Throws when something below is still open, unless `options` has `--lazy`. */
  unmount(...options: string[]): void {
    if (!existsSync(this.path)) return;
    unmount(this.path, ...options);
    rmSync(this.#folder, { recursive: true });
  }

  get freeBytes(): number {
    const { bavail, bsize } = statfsSync(this.path);
    return bavail * bsize;
  }

  /** Fills the disk until this much is free, also when others write at the same time. */
  fill(leftBytes: number): void {
    mkdirSync(this.#filler, { recursive: true });
    for (let bytes = this.freeBytes - leftBytes; bytes > 0; bytes = this.freeBytes - leftBytes) {
      const file = join(this.#filler, String(bytes));
      spawnSync("fallocate", ["-l", String(bytes), file]);
    }
  }

  free(): void {
    rmSync(this.#filler, { recursive: true, force: true });
  }

  get #filler(): string {
    return join(this.path, "filler");
  }
}
