/** Durable file operations, with fsync of files and folders, and the errors of a full disk. */
import { createHash } from "node:crypto";
import { closeSync, fdatasync, fsync, openSync } from "node:fs";
import { mkdir, open, readdir, readFile, rename, rm, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { Hashing } from "../../vmm/memory/piece-hashes.ts";
import { CapsuleError } from "../../wire/errors.ts";

/** fsync of a folder. */
export function syncFolder(path: string): Promise<void> {
  return sync(path, fsync);
}

/** fsync of a file: its times too, which fdatasync leaves out. */
export function syncFileAndTimes(path: string): Promise<void> {
  return sync(path, fsync);
}

/** fdatasync of a file. */
export function syncFile(path: string): Promise<void> {
  return sync(path, fdatasync);
}

/** Opens synchronously, since the file is in the kernel's caches; only the sync waits, on the thread pool. */
async function sync(path: string, wait: typeof fsync): Promise<void> {
  const fd = openSync(path, "r");
  try {
    await new Promise<void>((resolve, reject) => wait(fd, (error) => (error === null ? resolve() : reject(error))));
  } finally {
    closeSync(fd);
  }
}

/** Replaces a small file; with `durable` its bytes are synced. The caller syncs the folder. */
export async function writeJson(path: string, value: unknown, options: { durable: boolean }): Promise<void> {
  const file = await open(`${path}.new`, "w", 0o600);
  try {
    await file.writeFile(jsonText(value));
    if (options.durable) await file.datasync();
  } finally {
    await file.close();
  }
  await rename(`${path}.new`, path);
}

export function jsonText(value: unknown): string {
  return `${JSON.stringify(value, null, 1)}\n`;
}

/** The parsed file, or undefined when there is none. Throws on damaged JSON. */
export async function readJson<T>(path: string): Promise<T | undefined> {
  try {
    return JSON.parse(await readFile(path, "utf8")) as T;
  } catch (error) {
    if (isMissing(error)) return undefined;
    throw error;
  }
}

/** Renames a finished folder durably. The folder and its content must be synced already. */
export async function publish(from: string, to: string): Promise<void> {
  await rename(from, to);
  await syncFolder(dirname(to));
}

/** A new empty folder, mode 0700; an existing one is removed first. */
export async function freshFolder(path: string): Promise<void> {
  const isNew = (await mkdir(path, { recursive: true, mode: 0o700 })) !== undefined;
  if (isNew) return;
  await rm(path, { recursive: true, force: true });
  await mkdir(path, { mode: 0o700 });
}

/**
 * Hashes on the event loop, 1 MiB at a time, holes too; `pause` is awaited after each. Rejects with an AbortError when `signal`
 * fires.
 */
export async function sha256Of(path: string, { signal, pause }: Hashing = {}): Promise<string> {
  const hash = createHash("sha256");
  const file = await open(path, "r");
  try {
    let before = performance.now();
    for await (const chunk of file.createReadStream({ highWaterMark: 1 << 20, signal })) {
      hash.update(chunk as Uint8Array);
      await pause?.(performance.now() - before);
      before = performance.now();
    }
  } finally {
    await file.close();
  }
  return hash.digest("hex");
}

/** Bytes that a folder's files occupy on disk, without holes. */
export async function allocatedBytes(folder: string): Promise<number> {
  let bytes = 0;
  for (const name of await readdir(folder)) {
    const found = await stat(join(folder, name));
    bytes += found.blocks * 512;
  }
  return bytes;
}

/** The same of several folders together; one that cannot be read counts as empty. */
export async function allocatedInAll(folders: string[]): Promise<number> {
  const sizes = await Promise.allSettled(folders.map(allocatedBytes));
  return sizes.reduce((sum, size) => sum + (size.status === "fulfilled" ? size.value : 0), 0);
}

/** Turns ENOSPC, EDQUOT and QEMU's message for them into CapsuleError("no_space"); other errors are returned unchanged. */
export function explainSpace(error: unknown, what: string): unknown {
  const { code, message = "" } = (error ?? {}) as Partial<NodeJS.ErrnoException>;
  const isFull = code === "ENOSPC" || code === "EDQUOT" || /No space left on device|Disk quota exceeded/.test(message);
  if (!isFull) return error;
  return new CapsuleError("no_space", `${what} failed: the disk is full`, { cause: error });
}

/** Also for a path through a file in place of a folder. */
export function isMissing(error: unknown): boolean {
  const { code } = (error ?? {}) as NodeJS.ErrnoException;
  return code === "ENOENT" || code === "ENOTDIR";
}
