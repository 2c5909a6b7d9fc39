/**
 * A file system for power cuts: ext4 on a loop device. The device's file contains what an fsync or the kernel's write-back
 * has written, and nothing that only the page cache has. A copy of that file is the disk after a power cut.
 */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { unmount } from "../small-disk.ts";
import { waitFor } from "../wait-for.ts";

const imageBytes = 1536 << 20;
const copiesMax = 50;
/** Killed processes keep a file system busy until the kernel has ended them. */
const busyMs = 10_000;

export class CutDisk {
  readonly #folder = mkdtempSync(join(tmpdir(), "capsule-cut-"));
  readonly #image = join(this.#folder, "image");
  readonly path = join(this.#folder, "mounted");
  #device = "";

  /** `commitSec`: the interval of ext4's journal commits, which write names, but not the bytes of new files. */
  constructor(commitSec: number) {
    try {
      writeFileSync(this.#image, "");
      truncateSync(this.#image, imageBytes);
      execFileSync("mke2fs", ["-q", "-t", "ext4", "-m", "0", this.#image], { stdio: "pipe" });
      this.#device = attach(this.#image);
      mkdirSync(this.path);
      execFileSync("mount", ["-o", `commit=${commitSec}`, this.#device, this.path], { stdio: "pipe" });
    } catch (error) {
      if (this.#device !== "") execFileSync("losetup", ["--detach", this.#device]);
      rmSync(this.#folder, { recursive: true });
      throw error;
    }
  }

  /** Writes everything to the device. */
  syncAll(): void {
    execFileSync("sync", ["--file-system", this.path]);
  }

  /** Writes the files below a folder to the device. */
  sync(folder: string): void {
    const entries = readdirSync(folder, { recursive: true, encoding: "utf8" });
    execFileSync("sync", [folder, ...entries.map((entry) => join(folder, entry))]);
  }

  /**
   * A copy of the disk at this instant, made while `writers` are stopped. The kernel writes as well, so a copy is made again
   * unless the device's count of writes has stayed the same.
   */
  cut(writers: number[]): CopiedDisk {
    const image = join(this.#folder, "copy");
    for (const pid of writers) signal(pid, "SIGSTOP");
    try {
      for (let copies = 0; copies < copiesMax; copies++) {
        const before = this.#writes();
        execFileSync("cp", [this.#image, image]);
        if (before.pending === 0 && this.#writes().done === before.done) return new CopiedDisk(image);
      }
      throw new Error(`the disk was never still for as long as a copy takes, ${copiesMax} times`);
    } finally {
      for (const pid of writers) signal(pid, "SIGCONT");
    }
  }

  /** Columns of Documentation/admin-guide/iostats. */
  #writes(): { done: number; pending: number } {
    const columns = readFileSync(`/sys/block/${basename(this.#device)}/stat`, "utf8")
      .trim()
      .split(/\s+/)
      .map(Number);
    return { done: columns[4]! + columns[11]!, pending: columns[8]! };
  }

  [Symbol.dispose](): void {
    unmount(this.path);
    execFileSync("losetup", ["--detach", this.#device]);
    rmSync(this.#folder, { recursive: true });
  }
}

/** The disk as a machine finds it after the power cut. */
export class CopiedDisk implements AsyncDisposable {
  readonly #image: string;
  readonly path: string;

  constructor(image: string) {
    this.#image = image;
    this.path = `${image}-mounted`;
  }

  /** Replays the journal. Throws when e2fsck finds more than that to repair, since then the copy mixes two instants. */
  mount(): void {
    const corrected = 1;
    try {
      execFileSync("e2fsck", ["-p", this.#image], { stdio: "pipe" });
    } catch (error) {
      const { status, stdout } = error as { status: number; stdout: Buffer };
      assert.equal(status, corrected, `e2fsck: ${stdout}`);
    }
    mkdirSync(this.path);
    execFileSync("mount", ["-o", "loop", this.#image, this.path], { stdio: "pipe" });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await waitFor("the copied disk is unmounted", async () => isUnmounted(this.path), { deadlineMs: busyMs });
    rmSync(this.path, { recursive: true, force: true });
    rmSync(this.#image);
  }
}

function attach(image: string): string {
  return execFileSync("losetup", ["--find", "--show", image], { encoding: "utf8", stdio: "pipe" }).trim();
}

function isUnmounted(path: string): boolean {
  if (!readFileSync("/proc/mounts", "utf8").includes(` ${path} `)) return true;
  try {
    execFileSync("umount", [path], { stdio: "pipe" });
    return true;
  } catch {
    return false; // busy
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {} // it has just ended
}
