/**
 * manifest.json of a checkpoint. This release writes format 2 and also opens format 1, which the release before wrote. A
 * manifest may be damaged, so every field is checked when it is read.
 *
 *   format      2
 *   kind        "base", "template" or "pause"
 *   revision    of the capsule's row while it was paused; null in bases and templates
 *   epoch       1, or the row's epoch when the checkpoint was fetched from outside of this host
 *   frozen      whether the user's processes were frozen
 *   machine     vcpus, memory_mb, accelerator, cpu, qemu, qemu_build, cpu_features, tsc_khz, devices
 *   agent       protocol: the version of the agent protocol in the saved memory; of a base also grows: whether the agent can make
 *               the root file system larger
 *   layers      the disk below, bottom first: kind, key and sha256 of each
 *   disk_layer  size and mtime of a paused capsule's disk layer, which lies outside the checkpoint; null in bases and templates
 *   created_at  ISO 8601
 *   hashes      name of the file with the hashes of large files, which is written later; see hashes.ts
 *   files       bytes of each file, and the SHA-256 of small ones
 */
import { unrecordedProtocol } from "../../agent/protocol.ts";
import type { Machine } from "../../vmm/vmm.ts";
import { type Fields, isCount, isObject, isSha256, isSize, isText, requireFormat } from "./fields.ts";
import { decodeMachine, encodeMachine } from "./machine-record.ts";

export const manifestFormat = 2;
export const hashesName = "hashes";

export interface FileRecord {
  bytes: number;
  /** Always there for files up to 1 MiB; in format 1 also for larger ones. */
  sha256?: string;
}

/** A read-only disk below a checkpoint. */
export interface Layer {
  kind: "image";
  /** Its folder below `images`: name and build. */
  key: string;
  /** The hash of its disk. Null in format 1. */
  sha256: string | null;
}

/** A disk layer outside the checkpoint, as it was when the memory was saved. */
export interface DiskLayer {
  bytes: number;
  mtimeNs: bigint;
}

/** A checkpoint without its files. */
export interface Saved {
  kind: "base" | "template" | "pause";
  /** Null in bases, templates and format 1. */
  revision: number | null;
  machine: Machine;
  /** `grows`: of bases, whether it can make the root file system larger; not recorded by earlier releases. */
  agent: { protocol: number; grows?: boolean };
  /** Bottom first. */
  layers: Layer[];
  /** Null in format 1: not recorded. */
  frozen: boolean | null;
  /** Null in bases, templates and format 1. */
  diskLayer: DiskLayer | null;
}

export interface Manifest extends Saved {
  format: number;
  epoch: number;
  /** The built-in image, which is the lowest layer. */
  image: { name: string; hash: string };
  /** ISO 8601. */
  createdAt: string;
  /** Null in format 1. */
  hashes: string | null;
  files: Record<string, FileRecord>;
}

export function imageLayer(name: string, hash: string, sha256: string | null): Layer {
  return { kind: "image", key: `${name}/${hash}`, sha256 };
}

export function newManifest(saved: Saved, files: Manifest["files"]): Manifest {
  const createdAt = new Date().toISOString();
  const image = imageOf(saved.layers);
  return { ...saved, format: manifestFormat, epoch: 1, image, createdAt, hashes: hashesName, files };
}

export function encodeManifest(manifest: Manifest): Fields {
  const { format, kind, revision, epoch, frozen, machine, agent, layers, diskLayer, createdAt, hashes, files } =
    manifest;
  const layer = diskLayer === null ? null : { bytes: diskLayer.bytes, mtime_ns: String(diskLayer.mtimeNs) };
  return {
    ...{ format, kind, revision, epoch, frozen, machine: encodeMachine(machine), agent, layers },
    ...{ disk_layer: layer, created_at: createdAt, hashes, files },
  };
}

/** Throws an Error that names what is wrong; a NewerFormatError for the format of a later release. */
export function decodeManifest(value: unknown): Manifest {
  if (!isObject(value)) throw new Error("it is no object");
  const { format, kind } = value;
  requireFormat(format, manifestFormat);
  if (kind !== "base" && kind !== "template" && kind !== "pause") throw new Error(`its kind is ${String(kind)}`);
  const machine = decodeMachine(value.machine, format);
  const common = { format, kind, machine, agent: agentOf(value.agent), files: filesOf(value.files) } as const;
  return format === 1 ? fromFormat1(value, common) : fromFormat2(value, common);
}

type Common = Pick<Manifest, "format" | "kind" | "machine" | "agent" | "files">;

function fromFormat1(value: Fields, common: Common): Manifest {
  const layers = layersOf(value);
  const none = { revision: null, frozen: null, diskLayer: null, hashes: null };
  return { ...common, ...none, epoch: 1, layers, image: imageOf(layers), createdAt: timeOf(value.createdAt) };
}

function fromFormat2(value: Fields, common: Common): Manifest {
  const { revision, epoch, frozen, hashes } = value;
  if (revision !== null && !isSize(revision)) throw new Error(`its revision is ${String(revision)}`);
  if (!isCount(epoch)) throw new Error(`its epoch is ${String(epoch)}`);
  if (typeof frozen !== "boolean") throw new Error(`its frozen is ${String(frozen)}`);
  if (hashes !== hashesName) throw new Error(`its hashes are in ${String(hashes)}`);
  const layers = layersOf(value);
  const also = { layers, image: imageOf(layers), diskLayer: diskLayerOf(value.disk_layer) };
  return { ...common, ...also, revision, epoch, frozen, hashes, createdAt: timeOf(value.created_at) };
}

/** The layers of a parsed manifest of either format. Throws when it names none. */
export function layersOf(value: unknown): Layer[] {
  if (!isObject(value)) throw new Error("it is no object");
  const { layers, image } = value;
  if (layers === undefined && isObject(image) && isText(image.name) && isText(image.hash)) {
    return [imageLayer(image.name, image.hash, null)];
  }
  if (!Array.isArray(layers) || layers.length === 0) throw new Error("it has no layers");
  return layers.map((layer: unknown) => {
    const isLayer = isObject(layer) && layer.kind === "image" && isText(layer.key);
    const hasHash = isLayer && (layer.sha256 === null || isSha256(layer.sha256));
    if (!hasHash) throw new Error("it has a layer that is none");
    return { kind: "image", key: layer.key as string, sha256: layer.sha256 as string | null };
  });
}

export function imageOf([lowest]: Layer[]): Manifest["image"] {
  const [name, hash, more] = lowest?.key.split("/") ?? [];
  if (!isText(name) || !isText(hash) || more !== undefined) throw new Error("its lowest layer is no image");
  return { name, hash };
}

function diskLayerOf(value: unknown): DiskLayer | null {
  if (value === null) return null;
  const isRight = isObject(value) && isSize(value.bytes) && /^\d{1,20}$/.test(String(value.mtime_ns));
  if (!isRight) throw new Error("its disk_layer has no size or no mtime");
  return { bytes: value.bytes as number, mtimeNs: BigInt(value.mtime_ns as string) };
}

/** Saves of releases that did not record a version have that of their agents. */
function agentOf(value: unknown): Manifest["agent"] {
  if (value === undefined) return { protocol: unrecordedProtocol };
  if (!isObject(value) || !isCount(value.protocol)) throw new Error("its agent has no protocol");
  return { protocol: value.protocol, ...(typeof value.grows === "boolean" ? { grows: value.grows } : {}) };
}

function timeOf(value: unknown): string {
  if (!isText(value) || Number.isNaN(Date.parse(value))) throw new Error("it has no time");
  return value;
}

const fileName = /^[a-z0-9][a-z0-9.]{0,63}$/;

function filesOf(value: unknown): Manifest["files"] {
  if (!isObject(value) || Object.keys(value).length === 0) throw new Error("it has no files");
  const files: Manifest["files"] = {};
  for (const [name, record] of Object.entries(value)) {
    const isRight = fileName.test(name) && isObject(record) && isSize(record.bytes);
    if (!isRight) throw new Error(`its file ${JSON.stringify(name)} has no size`);
    const { bytes, sha256 } = record;
    if (sha256 !== undefined && !isSha256(sha256)) throw new Error(`the checksum of its file ${name} is no SHA-256`);
    files[name] = { bytes: bytes as number, ...(sha256 === undefined ? {} : { sha256 }) };
  }
  return files;
}
