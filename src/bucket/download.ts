/** Files from the bucket: written to a folder of its own, checked chunk by chunk, synced, and then renamed to where they belong. */
import { type FileHandle, mkdir, open, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { CapsuleError } from "../wire/errors.ts";
import { chunkBytes, chunkLength, filledParts } from "./chunks.ts";
import type { BucketManifest, ManifestFile } from "./manifest.ts";
import { inLanes } from "./parallel.ts";
import type { ManifestRecord, Reading, SealedBucket } from "./sealed-bucket.ts";
import { lanes } from "./upload.ts";

export interface DownloadOptions {
  manifest: ManifestRecord;
  /** Folder that is made, and is gone afterwards. On the same file system as `target`. */
  work: string;
  /** Where the folder is to be; nothing is there yet. */
  target: string;
  /** The most that all its files may have together: the room that was set aside. */
  bytesMax: number;
  /** When the upload ended, in ms since 1970; see `GetOptions`. */
  writtenAt?: number | undefined;
  /** Changes the files before the folder is renamed, and syncs what it has changed. */
  finish?: (folder: string, manifest: BucketManifest) => Promise<void>;
  signal?: AbortSignal | undefined;
}

/** The folder is at `target` with all of its files, or neither folder is there. Rejects with the signal's reason. */
export async function download(sealed: SealedBucket, options: DownloadOptions): Promise<BucketManifest> {
  const { manifest: record, work, target, bytesMax, finish, writtenAt, signal } = options;
  const reading: Reading = { writtenAt, signal };
  const manifest = await sealed.getManifest(record, bytesMax, reading);
  await mkdir(work, { mode: 0o700 });
  try {
    const folders = await makeFolders(work, manifest.files);
    await fill(sealed, work, manifest.files, reading);
    for (const folder of folders) await syncFolder(folder);
    await finish?.(work, manifest);
    signal?.throwIfAborted();
    await rename(work, target);
  } catch (error) {
    await rm(work, { recursive: true, force: true });
    throw fromDisk(error);
  }
  await syncFolder(dirname(target));
  return manifest;
}

/** All folders, each behind those in it. */
async function makeFolders(work: string, files: readonly ManifestFile[]): Promise<string[]> {
  const folders = new Set([work]);
  for (const { name } of files) {
    const parts = name.split("/").slice(0, -1);
    for (let depth = 1; depth <= parts.length; depth++) folders.add(join(work, ...parts.slice(0, depth)));
  }
  for (const folder of folders) if (folder !== work) await mkdir(folder, { mode: 0o700 });
  return [...folders].reverse();
}

async function fill(
  sealed: SealedBucket,
  work: string,
  files: readonly ManifestFile[],
  reading: Reading,
): Promise<void> {
  const handles: FileHandle[] = [];
  try {
    for (const { name, bytes, isExecutable = false } of files) {
      const handle = await open(join(work, name), "wx", isExecutable ? 0o700 : 0o600);
      handles.push(handle);
      await handle.truncate(bytes); // all of it a hole
    }
    await inLanes(chunksOf(files), {
      ...{ count: lanes, signal: reading.signal },
      lane:
        () =>
        async ({ file, index }) => {
          const { bytes, chunks } = files[file]!;
          const chunk = { ...chunks[index]!, bytes: chunkLength(bytes, index) };
          const plain = await sealed.getChunk(chunk, reading);
          for (const [begin, end] of filledParts(plain))
            await writeWhole(handles[file]!, plain.subarray(begin, end), index * chunkBytes + begin);
        },
    });
    for (const handle of handles) await handle.sync();
  } finally {
    for (const handle of handles) await handle.close();
  }
}

/** Without those of zeros. */
function* chunksOf(files: readonly ManifestFile[]): Generator<{ file: number; index: number }> {
  for (const [file, { chunks }] of files.entries()) {
    for (const [index, chunk] of chunks.entries()) if (chunk !== null) yield { file, index };
  }
}

async function writeWhole(handle: FileHandle, bytes: Uint8Array, at: number): Promise<void> {
  for (let put = 0; put < bytes.length; ) {
    const { bytesWritten } = await handle.write(bytes, put, bytes.length - put, at + put);
    put += bytesWritten;
  }
}

async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

function fromDisk(error: unknown): unknown {
  const { code } = (error ?? {}) as { code?: unknown };
  if (code !== "ENOSPC" && code !== "EDQUOT") return error;
  return new CapsuleError("no_space", "a fetch from the bucket failed: the disk is full", { cause: error });
}
