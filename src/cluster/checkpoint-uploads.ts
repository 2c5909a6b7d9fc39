/** The files of paused capsules into the bucket, behind the folders that they stand on. */
import type { SealedBucket } from "../bucket/sealed-bucket.ts";
import { type UploadFile, upload } from "../bucket/upload.ts";
import type { ArtifactKind, Artifacts } from "./artifacts.ts";
import type { ClusterStep } from "./copies.ts";
import type { CheckpointUploads, Described } from "./releases.ts";

/** A paused capsule, as its host describes it. */
export interface MovingFiles {
  files: readonly UploadFile[];
  /** Bottom first. */
  layers: readonly { kind: ArtifactKind; key: string; sha256: string | null }[];
  /** Revision of the row while it was being paused. */
  revision: number;
  record: { format: number; machine: Record<string, unknown> };
  bytes: number;
}

export interface BucketUploadsOptions {
  bucket: SealedBucket;
  folders: { describe(id: string): Promise<MovingFiles> };
  artifacts: Pick<Artifacts, "offer">;
  step?: ClusterStep | undefined;
}

interface Files extends Described {
  moving: MovingFiles;
}

export class BucketUploads implements CheckpointUploads<Files> {
  readonly #options: BucketUploadsOptions;

  constructor(options: BucketUploadsOptions) {
    this.#options = options;
  }

  async describe(id: string): Promise<Files> {
    const moving = await this.#options.folders.describe(id);
    const { revision: savedRevision, bytes } = moving;
    // As it stands in the row of PostgreSQL: a field that is undefined is none.
    const record = JSON.parse(JSON.stringify(moving.record)) as MovingFiles["record"];
    const { machine, format } = record;
    const qemuBuild = typeof machine.qemu_build === "string" ? machine.qemu_build : null;
    return { moving, savedRevision, bytes, record, machine, qemuBuild, format };
  }

  async upload({ moving: { layers, files } }: Files, prefix: string, signal: AbortSignal): Promise<string> {
    const { bucket, artifacts, step } = this.#options;
    for (const { kind, key } of layers) await artifacts.offer(kind, key, signal);
    const { sha256 } = await upload(bucket, { prefix, layers, files, signal, onChunk: () => step?.("chunk") });
    return sha256;
  }
}
