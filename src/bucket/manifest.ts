/**
 * The manifest of an upload: the read-only disks below it, and of each file its chunks by the names of their objects. A manifest comes
 * from a bucket, so each of its values is checked, and the sum of what it announces, before one of them is used.
 */
import { chunkCount } from "./chunks.ts";
import { isObjectName } from "./objects.ts";

export interface Layer {
  kind: string;
  key: string;
  /** The hash of the layer's disk; null: not recorded. */
  sha256: string | null;
}

export interface Chunk {
  object: string;
  sha256: string;
}

export interface ManifestFile {
  /** Path below the folder. */
  name: string;
  bytes: number;
  /** In order; null: zeros. */
  chunks: (Chunk | null)[];
  /** A program. */
  isExecutable?: boolean | undefined;
}

export interface BucketManifest {
  /** Bottom first. */
  layers: Layer[];
  files: ManifestFile[];
}

/** The size of a manifest, sealed or not. */
export const manifestMaxBytes = 16 << 20;
const format = 1;
const layersMax = 64;
const filesMax = 256;
/** 512 GiB of chunks that are no zeros. */
const chunksMax = 1 << 17;
const part = /^[a-zA-Z0-9_][a-zA-Z0-9._+,-]{0,127}$/;
const depthMax = 8;
const layerKey = /^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}(\/[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}){0,3}$/;

export function encodeManifest({ layers, files }: BucketManifest): string {
  const encoded = files.map(({ name, bytes, chunks, isExecutable = false }) => ({
    ...{ name, bytes, ...(isExecutable ? { executable: true } : {}) },
    chunks: chunks.map((chunk) => (chunk === null ? null : [chunk.object, chunk.sha256])),
  }));
  return JSON.stringify({ format, layers, files: encoded });
}

/** Throws an Error that says what is wrong. `bytesMax`: of all files together. */
export function decodeManifest(text: string, bytesMax: number): BucketManifest {
  const value = JSON.parse(text) as unknown;
  if (!isObject(value)) throw new Error("it is no object");
  if (value.format !== format)
    throw new Error(`its format is ${shown(value.format)}, and this program reads ${format}`);
  const layers = listOf(value.layers, layersMax, "layers").map(layerOf);
  const listed = listOf(value.files, filesMax, "files");
  let [bytes, chunks] = [0, 0];
  // Sizes first: nothing is made of a list that is too long.
  for (const file of listed) {
    if (!isObject(file) || !isSize(file.bytes)) throw new Error("it has a file without a size");
    bytes += file.bytes;
    if (bytes > bytesMax) throw new Error(`its files have more than ${bytesMax} bytes together`);
    if (!Array.isArray(file.chunks)) throw new Error("it has a file without chunks");
    chunks += file.chunks.filter((each) => each !== null).length;
    if (chunks > chunksMax) throw new Error(`it has more than ${chunksMax} chunks`);
  }
  const files = listed.map(fileOf);
  requireTree(files.map(({ name }) => name));
  return { layers, files };
}

/** Throws an Error where a file cannot have this name, or two cannot lie beside each other. */
export function requireTree(names: readonly string[]): void {
  const taken = new Set<string>();
  const folders = new Set<string>();
  for (const name of names) {
    const parts = name.split("/");
    if (parts.length > depthMax || !parts.every((each) => part.test(each)))
      throw new Error(`${shown(name)} cannot be the name of a file`);
    if (taken.has(name)) throw new Error(`it has two files ${name}`);
    taken.add(name);
    for (let depth = 1; depth < parts.length; depth++) folders.add(parts.slice(0, depth).join("/"));
  }
  for (const folder of folders) if (taken.has(folder)) throw new Error(`${folder} is a file and a folder in it`);
}

function layerOf(value: unknown): Layer {
  const isLayer = isObject(value) && typeof value.kind === "string" && /^[a-z]{1,32}$/.test(value.kind);
  if (!isLayer || typeof value.key !== "string" || !layerKey.test(value.key))
    throw new Error("it has a layer that is none");
  if (value.sha256 !== null && !isSha256(value.sha256)) throw new Error("it has a layer without a SHA-256");
  return { kind: value.kind as string, key: value.key, sha256: value.sha256 };
}

function fileOf(value: unknown): ManifestFile {
  type Listed = { name: unknown; bytes: number; chunks: unknown[]; executable?: unknown };
  const { name, bytes, chunks, executable = false } = value as Listed;
  if (typeof name !== "string") throw new Error("it has a file without a name");
  if (typeof executable !== "boolean") throw new Error(`${shown(name)} is executable: ${shown(executable)}`);
  if (chunks.length !== chunkCount(bytes)) throw new Error(`${shown(name)} has not the chunks of ${bytes} bytes`);
  return {
    ...{ name, bytes, ...(executable ? { isExecutable: true } : {}) },
    chunks: chunks.map((chunk) => {
      if (chunk === null) return null;
      const [object, sha256, more] = Array.isArray(chunk) ? (chunk as unknown[]) : [];
      if (!isObjectName(object) || !isSha256(sha256) || more !== undefined)
        throw new Error(`${shown(name)} has a chunk that is none`);
      return { object, sha256 };
    }),
  };
}

function listOf(value: unknown, most: number, what: string): unknown[] {
  if (!Array.isArray(value)) throw new Error(`it has no ${what}`);
  if (value.length > most) throw new Error(`it has ${value.length} ${what}, more than ${most}`);
  return value;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isSize(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function isSha256(value: unknown): value is string {
  return typeof value === "string" && /^[0-9a-f]{64}$/.test(value);
}

function shown(value: unknown): string {
  return String(JSON.stringify(value)).slice(0, 200);
}
