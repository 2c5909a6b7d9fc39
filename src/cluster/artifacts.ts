/**
 * Folders of hosts in the bucket: images, QEMU builds, bases and templates. PostgreSQL says which are there, one of each kind and key. A
 * fetched folder is checked twice: against the manifest that PostgreSQL names, and by the host as a folder of its own.
 */
import { randomBytes } from "node:crypto";
import { setTimeout as delay } from "node:timers/promises";
import { chunkLength } from "../bucket/chunks.ts";
import { download } from "../bucket/download.ts";
import type { BucketManifest, Layer } from "../bucket/manifest.ts";
import { DamagedObject } from "../bucket/objects.ts";
import type { SealedBucket } from "../bucket/sealed-bucket.ts";
import { type UploadFile, upload } from "../bucket/upload.ts";
import type { Clock } from "../capsules/clock.ts";
import type { TemplateRows } from "../db/template-rows.ts";
import { CapsuleError } from "../wire/errors.ts";
import { FetchedTemplates } from "./fetched-templates.ts";
import { JointWork, Lanes } from "./joint-work.ts";
import type { Postgres } from "./postgres.ts";

export type ArtifactKind = "image" | "qemu" | "base" | "template";

/** A folder of this host. */
export interface ArtifactFolder {
  /** By which what stands on the folder knows it; null: not recorded. */
  sha256: string | null;
  /** The folders that it stands on, bottom first. */
  layers: readonly { kind: ArtifactKind; key: string }[];
  files: readonly UploadFile[];
}

/** The folders of this host. */
export interface ArtifactFolders {
  /** The folder is not removed until the result is disposed of. */
  hold(kind: ArtifactKind, key: string): Promise<Disposable>;
  /** Undefined: there is none. Throws "agent_error" for a damaged one. */
  find(kind: ArtifactKind, key: string): Promise<ArtifactFolder | undefined>;
  /** Sets room aside for a fetch. Throws "no_space". */
  place(kind: ArtifactKind, key: string, bytes: number): Promise<Disposable & { work: string; target: string }>;
  /** Throws "agent_error" unless all of it is what a host would have made itself. */
  check(kind: ArtifactKind, key: string, folder: string): Promise<void>;
  /** Throws "conflict" for a template of a machine that this host cannot build. */
  requireUsable(storage: string): Promise<void>;
  /** It is in its place, and may be used. */
  published(kind: ArtifactKind, key: string): Promise<void>;
}

export interface ArtifactsOptions {
  sql: Postgres;
  bucket: SealedBucket;
  /** This host's templates. */
  rows: TemplateRows;
  clock: Pick<Clock, "now">;
}

/** The part of this host that is there when its service is made. */
export interface ArtifactParts {
  folders: ArtifactFolders;
  /** The files of a template without a row are not removed until the result is disposed of. */
  hold: (storage: string) => Disposable;
}

/** No host has offered it, or it was of a template that is gone. */
export class NotInBucket extends CapsuleError {}

interface Row {
  prefix: string;
  manifestSha256: string;
  /** As ArtifactFolder.sha256. */
  sha256: string | null;
  createdAt: number;
}

/** The kinds that a folder may stand on. */
const below: Readonly<Record<ArtifactKind, readonly string[]>> = {
  ...{ image: [], qemu: [], base: ["image", "qemu"], template: ["image", "qemu"] },
};
/** Folders that are written to the bucket, or fetched from it, at a time; each with eight chunks. */
const [uploadsAtOnce, fetchesAtOnce] = [2, 4];
const limitMs = 30 * 60_000;
const closeMs = 1_000;
/** All files of a folder, with their holes. */
const bytesMax = 2 ** 42;

export class Artifacts {
  readonly #options: ArtifactsOptions;
  #begun: { folders: ArtifactFolders; templates: FetchedTemplates } | undefined;
  readonly #uploads = new JointWork<Layer>({ limitMs });
  /** A fetch that is given up goes on: the next one finds the folder. */
  readonly #fetches = new JointWork<string | null>({ limitMs, isKept: true });
  readonly #uploading = new Lanes(uploadsAtOnce);
  readonly #fetching = new Lanes(fetchesAtOnce);

  constructor(options: ArtifactsOptions) {
    this.#options = options;
  }

  /** Call it before anything is offered or fetched. */
  begin({ folders, hold }: ArtifactParts): void {
    this.#begun = { folders, templates: new FetchedTemplates({ ...this.#options, hold }) };
  }

  /**
   * Resolves when the bucket has the folder of this host whole, with those that it stands on, and PostgreSQL names it. Returns the layer
   * for manifests. Throws "agent_error" where the folder is damaged or not here, "conflict" where the bucket's has other bytes, and
   * "unavailable".
   */
  async offer(kind: ArtifactKind, key: string, signal?: AbortSignal): Promise<Layer> {
    return await this.#uploads.run(`${kind}/${key}`, (each) => this.#offer(kind, key, each), signal);
  }

  /**
   * Resolves when the folder is in this data folder: fetched, checked and published, or there before. It stays until the result is disposed
   * of. Throws "unavailable" where the bucket has none or does not answer, "agent_error" where it does not verify, and "no_space".
   */
  async fetch(kind: ArtifactKind, key: string, signal?: AbortSignal): Promise<Disposable> {
    const held = await this.hold(kind, key);
    try {
      await this.#fetched(kind, key, signal);
      return held;
    } catch (error) {
      held[Symbol.dispose]();
      throw error;
    }
  }

  /** The folder, once it is there, is not removed until the result is disposed of. */
  async hold(kind: ArtifactKind, key: string): Promise<Disposable> {
    const { folders, templates } = this.#parts;
    return kind === "template" ? templates.hold(key) : await folders.hold(kind, key);
  }

  /** A template that was offered and is none: its capture has failed. */
  async withdraw(storage: string): Promise<void> {
    await this.#options.sql.call("drop_template_files", [storage], { what: "remove the files of a template" });
  }

  /** Ends what is under way. */
  async close(): Promise<void> {
    const reason = new CapsuleError("unavailable", "the server is stopping");
    const closed = Promise.all([this.#uploads.close(reason), this.#fetches.close(reason)]);
    // The bucket may be slow to remove what an upload has written: it is garbage in any case.
    await Promise.race([closed, delay(closeMs, undefined, { ref: false })]);
  }

  async #offer(kind: ArtifactKind, key: string, signal: AbortSignal): Promise<Layer> {
    const { sql, bucket } = this.#options;
    const { folders } = this.#parts;
    using _held = await this.hold(kind, key);
    const found = await folders.find(kind, key);
    if (found === undefined) throw new CapsuleError("agent_error", `this host has no ${kind} ${key}`);
    const { files, sha256 } = found;
    const layer = { kind, key, sha256 };
    const layers: Layer[] = [];
    for (const each of found.layers) layers.push(await this.offer(each.kind, each.key, signal));
    const row = await this.#row(kind, key);
    if (row !== undefined) return sameAs(row.sha256, layer);
    const prefix = `${kind}/${key}/${randomBytes(4).toString("hex")}`;
    const what = { what: `keep ${kind} ${key} in the bucket` };
    await sql.call("begin_upload", [prefix], what);
    const put = () => upload(bucket, { prefix, layers, files, signal });
    const uploaded = await this.#uploading.run(put, signal);
    signal.throwIfAborted();
    const values = [kind, key, prefix, uploaded.sha256, uploaded.bytes, sha256];
    return sameAs(await sql.call<string | null>("note_artifact", values, what), layer);
  }

  #fetched(kind: ArtifactKind, key: string, signal?: AbortSignal): Promise<string | null> {
    return this.#fetches.run(`${kind}/${key}`, (each) => this.#fetch(kind, key, each), signal);
  }

  /** Resolves with the folder's hash. */
  async #fetch(kind: ArtifactKind, key: string, signal: AbortSignal): Promise<string | null> {
    const { bucket } = this.#options;
    const { folders, templates } = this.#parts;
    using _held = await this.hold(kind, key);
    if ((await folders.find(kind, key)) === undefined) {
      const row = await this.#row(kind, key);
      if (row === undefined) throw new NotInBucket("unavailable", `the bucket has no ${kind} ${key}`);
      const record = { object: `${row.prefix}/manifest`, sha256: row.manifestSha256 };
      const reading = { writtenAt: row.createdAt, signal };
      const manifest = await bucket.getManifest(record, bytesMax, reading);
      for (const layer of manifest.layers) await this.#fetchLayer(kind, layer, record.object, signal);
      using place = await folders.place(kind, key, filledBytes(manifest));
      const { work, target } = place;
      if (kind === "template") templates.expect(key);
      const finish = (folder: string) => folders.check(kind, key, folder);
      const get = () => download(bucket, { manifest: record, work, target, bytesMax, finish, ...reading });
      await this.#fetching.run(get, signal);
      await folders.published(kind, key);
    }
    if (kind === "template") await templates.put(key);
    return (await folders.find(kind, key))?.sha256 ?? null;
  }

  async #fetchLayer(kind: ArtifactKind, layer: Layer, object: string, signal: AbortSignal): Promise<void> {
    if (!below[kind].includes(layer.kind)) throw new DamagedObject(object, `its folder stands on a ${layer.kind}`);
    const sha256 = await this.#fetched(layer.kind as ArtifactKind, layer.key, signal);
    if (layer.sha256 === null || sha256 === null || layer.sha256 === sha256) return;
    throw new DamagedObject(object, `its folder stands on another ${layer.kind} ${layer.key} than there is`);
  }

  /** The folders of this host. */
  get folders(): ArtifactFolders {
    return this.#parts.folders;
  }

  get #parts() {
    if (this.#begun === undefined) throw new Error("the service was not made");
    return this.#begun;
  }

  async #row(kind: ArtifactKind, key: string): Promise<Row | undefined> {
    const [row] = await this.#options.sql.query<Row & Record<string, unknown>>(
      `SELECT prefix, manifest_sha256 AS "manifestSha256", sha256, created_at AS "createdAt" FROM artifacts WHERE kind = $1 AND key = $2`,
      [kind, key],
      { what: `look for ${kind} ${key} in the bucket` },
    );
    return row;
  }
}

/** Throws "conflict" where the bucket's folder is known to be another one: a key of inputs alone does not say which bytes were built. */
function sameAs(stored: string | null, layer: Layer): Layer {
  const { kind, key, sha256 } = layer;
  if (stored === null || sha256 === null || stored === sha256) return layer;
  throw new CapsuleError("conflict", `the bucket's ${kind} ${key} has other bytes than this host's`);
}

/** The bytes that its files have on disk: what is no hole. */
function filledBytes({ files }: BucketManifest): number {
  let bytes = 0;
  for (const file of files)
    for (const [index, chunk] of file.chunks.entries()) if (chunk !== null) bytes += chunkLength(file.bytes, index);
  return bytes;
}
