/** A bucket by its contents: chunks and manifests, sealed when they are written and checked when they are read. */
import { createHash } from "node:crypto";
import type { Bucket, GetOptions } from "./bucket.ts";
import { type BucketManifest, decodeManifest, encodeManifest, manifestMaxBytes } from "./manifest.ts";
import { DamagedObject } from "./objects.ts";
import { open, type SealingKey, seal, sealedMax } from "./sealing.ts";

/** A chunk, by what a manifest says of it. */
export interface ChunkRecord {
  object: string;
  bytes: number;
  sha256: string;
}

/** The part of an upload that a row keeps. */
export interface ManifestRecord {
  object: string;
  /** The hash of the object as it is stored. */
  sha256: string;
}

export type Reading = Omit<GetOptions, "maxBytes">;

export class SealedBucket {
  readonly bucket: Bucket;
  readonly #key: SealingKey;

  constructor(bucket: Bucket, key: SealingKey) {
    this.bucket = bucket;
    this.#key = key;
  }

  /** Returns the bytes that are stored. `plain` must have the hash, and may be reused when the promise has settled. */
  async putChunk(chunk: ChunkRecord, plain: Uint8Array<ArrayBuffer>, signal?: AbortSignal): Promise<number> {
    const object = await seal(this.#key, { name: chunk.object, about: aboutChunk(chunk), plain });
    await this.bucket.put(chunk.object, object, signal);
    return object.length;
  }

  /** The contents, of the length and the hash that are asked for. */
  async getChunk(chunk: ChunkRecord, reading: Reading): Promise<Buffer> {
    const { object: name, bytes } = chunk;
    const object = await this.bucket.get(name, { ...reading, maxBytes: sealedMax(bytes) });
    const plain = await open(this.#key, { name, about: aboutChunk(chunk), object, maxBytes: bytes });
    if (plain.length !== bytes) throw new DamagedObject(name, `it has ${plain.length} bytes, not ${bytes}`);
    if ((await sha256Of(plain)) !== chunk.sha256) throw new DamagedObject(name, "its SHA-256 is another");
    return plain;
  }

  async putManifest(
    name: string,
    manifest: BucketManifest,
    signal?: AbortSignal,
  ): Promise<ManifestRecord & { bytes: number }> {
    const plain = Buffer.from(encodeManifest(manifest));
    const object = await seal(this.#key, { name, about: "manifest", plain });
    if (Math.max(plain.length, object.length) > manifestMaxBytes)
      throw new Error(`the manifest ${name} would have ${plain.length} bytes, more than ${manifestMaxBytes}`);
    await this.bucket.put(name, object, signal);
    return { object: name, sha256: await sha256Of(object), bytes: object.length };
  }

  /** `bytesMax`: of all its files together. */
  async getManifest(
    { object: name, sha256 }: ManifestRecord,
    bytesMax: number,
    reading: Reading,
  ): Promise<BucketManifest> {
    const object = await this.bucket.get(name, { ...reading, maxBytes: manifestMaxBytes });
    if ((await sha256Of(object)) !== sha256) throw new DamagedObject(name, "its SHA-256 is another");
    const plain = await open(this.#key, { name, about: "manifest", object, maxBytes: manifestMaxBytes });
    try {
      return decodeManifest(plain.toString("utf8"), bytesMax);
    } catch (error) {
      throw new DamagedObject(name, (error as Error).message, error);
    }
  }
}

function aboutChunk({ object, bytes, sha256 }: ChunkRecord): string {
  return `chunk\n${object}\n${bytes}\n${sha256}`;
}

/** On the thread pool for what is large; a small digest would only wait there. */
export async function sha256Of(bytes: Uint8Array): Promise<string> {
  if (bytes.length < 64 * 1024) return createHash("sha256").update(bytes).digest("hex");
  return Buffer.from(await crypto.subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>)).toString("hex");
}
