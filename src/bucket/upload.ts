/** Files into the bucket: their chunks, eight at a time, and then the manifest, which names them. */
import { type FileHandle, open } from "node:fs/promises";
import { chunkBytes, chunkCount, chunkLength, isZero, isZeroHash } from "./chunks.ts";
import { type Layer, type ManifestFile, requireTree } from "./manifest.ts";
import { inLanes } from "./parallel.ts";
import { type ManifestRecord, type SealedBucket, sha256Of } from "./sealed-bucket.ts";

/** Chunks under way at a time, of one upload or fetch. */
export const lanes = 8;
/** After a failure, for removing what was written. */
const removalMs = 10_000;

export interface UploadFile {
  /** Its path below the folder that a fetch makes. */
  name: string;
  /** Where it lies now. It does not change meanwhile. */
  path: string;
  /** The SHA-256 of each of its chunks, where they are known: another byte then ends the upload. */
  sha256?: readonly string[] | undefined;
  /** A program. */
  isExecutable?: boolean | undefined;
}

export interface UploadOptions {
  /** The beginning of its objects' names, which is used once. */
  prefix: string;
  /** The disks below, bottom first. */
  layers: readonly Layer[];
  files: readonly UploadFile[];
  signal?: AbortSignal | undefined;
  /** Called when a chunk is in the bucket. */
  onChunk?: (() => void) | undefined;
}

export interface Uploaded extends ManifestRecord {
  /** The size of all objects together, as they are stored. */
  bytes: number;
}

interface OpenFile {
  source: UploadFile;
  handle: FileHandle;
  bytes: number;
}

/**
 * Complete when it resolves. When it rejects there is no manifest, and the chunks are removed as far as the bucket does that within 10 s.
 */
export async function upload(sealed: SealedBucket, options: UploadOptions): Promise<Uploaded> {
  const { prefix, layers, files: sources, signal, onChunk } = options;
  requireTree(sources.map(({ name }) => name));
  const written: string[] = [];
  const opened: OpenFile[] = [];
  try {
    for (const source of sources) opened.push(await openFile(source));
    const files: ManifestFile[] = opened.map(({ source: { name, isExecutable }, bytes }) => {
      return { name, bytes, chunks: [], isExecutable };
    });
    let stored = 0;
    await inLanes(chunksOf(opened), {
      ...{ count: lanes, signal },
      lane: () => {
        const buffer = Buffer.allocUnsafeSlow(chunkBytes);
        return async ({ file, index, serial }) => {
          const { handle, bytes, source } = opened[file]!;
          const [length, known] = [chunkLength(bytes, index), source.sha256?.[index]];
          files[file]!.chunks[index] = null;
          if (known !== undefined && isZeroHash(known, length)) return;
          const plain = buffer.subarray(0, length);
          await readWhole(handle, plain, index * chunkBytes, source.name);
          const sha256 = await sha256Of(plain);
          if (known !== undefined && sha256 !== known)
            throw new Error(`${source.name} has other bytes from ${index * chunkBytes} on than when it was saved`);
          if (isZero(plain)) return;
          const object = `${prefix}/${serial}`;
          written.push(object);
          files[file]!.chunks[index] = { object, sha256 };
          const bytesStored = await sealed.putChunk({ object, bytes: length, sha256 }, plain, signal);
          stored += bytesStored;
          onChunk?.();
        };
      },
    });
    const name = `${prefix}/manifest`;
    written.push(name);
    const { bytes, ...record } = await sealed.putManifest(name, { layers: [...layers], files }, signal);
    return { ...record, bytes: stored + bytes };
  } catch (error) {
    await remove(sealed, written.reverse());
    throw error;
  } finally {
    for (const { handle } of opened) await handle.close();
  }
}

async function openFile(source: UploadFile): Promise<OpenFile> {
  const handle = await open(source.path, "r");
  const { size: bytes } = await handle.stat();
  const { sha256, name } = source;
  if (sha256 === undefined || sha256.length === chunkCount(bytes)) return { source, handle, bytes };
  await handle.close();
  throw new Error(`${name} has ${bytes} bytes, and hashes of ${sha256.length} chunks`);
}

function* chunksOf(opened: readonly OpenFile[]): Generator<{ file: number; index: number; serial: number }> {
  let serial = 0;
  for (const [file, { bytes }] of opened.entries()) {
    for (let index = 0; index < chunkCount(bytes); index++) yield { file, index, serial: serial++ };
  }
}

async function readWhole(handle: FileHandle, into: Uint8Array, at: number, name: string): Promise<void> {
  for (let got = 0; got < into.length; ) {
    const { bytesRead } = await handle.read(into, got, into.length - got, at + got);
    if (bytesRead === 0) throw new Error(`${name} has become shorter while it was read`);
    got += bytesRead;
  }
}

/** The manifest goes first: without it the chunks are nobody's. The collector finds by the prefix what stays. */
async function remove(sealed: SealedBucket, names: readonly string[]): Promise<void> {
  const signal = AbortSignal.timeout(removalMs);
  const removed = inLanes(names, {
    ...{ count: lanes, signal },
    lane: () => async (name) => {
      await sealed.bucket.delete(name, signal);
    },
  });
  await removed.catch(() => {});
}
