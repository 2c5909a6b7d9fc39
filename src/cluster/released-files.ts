/**
 * The files of capsules that this host acquires: the folder that was set aside here, if it is of the very checkpoint, else those in the
 * bucket, with the folders that they stand on. Both are compared with the capsule's row, and wait beside the capsules for it.
 */
import { download } from "../bucket/download.ts";
import { BucketError } from "../bucket/objects.ts";
import type { SealedBucket } from "../bucket/sealed-bucket.ts";
import type { LocalFetches } from "../host/moves/local-fetches.ts";
import type { MovedFolders, ReleasedAs } from "../host/moves/moved-folders.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { ReleasedFiles } from "./acquiring.ts";
import type { ArtifactKind, Artifacts } from "./artifacts.ts";
import type { Released } from "./released.ts";

export interface FetchedFilesOptions {
  bucket: SealedBucket;
  artifacts: Pick<Artifacts, "fetch" | "hold">;
  moved: Pick<MovedFolders, "bringBack" | "placeFor" | "take" | "putBack" | "keep" | "finish">;
  fetches: Pick<LocalFetches, "isAside" | "requireMachine" | "layersOf" | "place">;
}

/** Capsules that are fetched at a time, each by eight chunks, and those that wait for it. */
const [fetchesAtOnce, waitingMax] = [4, 32];
/** The time of a fetch: a minute, and what its bytes take at 4 MiB/s; at most that of its question to this host. */
const [fetchMs, bytesPerMs, fetchMaxMs] = [60_000, 4_195, 840_000];

export class FetchedFiles implements ReleasedFiles {
  readonly #options: FetchedFilesOptions;
  readonly #places = new Map<string, { work: string }>();
  #fetching = 0;
  readonly #waiting: (() => void)[] = [];

  constructor(options: FetchedFilesOptions) {
    this.#options = options;
  }

  async admit(released: Released): Promise<Disposable> {
    const { artifacts, fetches } = this.#options;
    const { row, checkpoint } = released;
    using stack = new DisposableStack();
    stack.use(this.#options.moved.keep(row.id));
    // Nothing else keeps these folders until the capsule has a row here.
    for (const { kind, key } of fetches.layersOf(checkpoint, nameOf(released)))
      stack.use(await artifacts.hold(kind as ArtifactKind, key));
    if (fetches.isAside(row.id, asOf(released))) {
      await fetches.requireMachine(checkpoint, nameOf(released));
      return stack.move();
    }
    stack.use(await this.#turn());
    await this.#fetchBuild(released);
    await fetches.requireMachine(checkpoint, nameOf(released));
    const place = stack.use(await fetches.place(row.id, checkpoint.bytes));
    this.#places.set(row.id, place);
    stack.defer(() => this.#places.delete(row.id));
    return stack.move();
  }

  async bring(acquired: Released): Promise<void> {
    const { moved, fetches } = this.#options;
    const { row, checkpoint } = acquired;
    if (await moved.bringBack(row.id, asOf(acquired), acquired.epoch)) return;
    let place = this.#places.get(row.id);
    using own = new DisposableStack();
    place ??= own.use(await fetches.place(row.id, checkpoint.bytes)); // it was dropped, or is damaged
    const signal = AbortSignal.timeout(Math.min(fetchMs + Math.ceil(checkpoint.bytes / bytesPerMs), fetchMaxMs));
    try {
      await this.#fetch(acquired, { ...place, target: await moved.placeFor(row.id, waitingAs(acquired)) }, signal);
    } catch (error) {
      if (signal.aborted)
        throw new CapsuleError("unavailable", `${nameOf(acquired)} could not be fetched in its time`, { cause: error });
      if (!(error instanceof BucketError && error.isMissing)) throw error;
      throw new CapsuleError("agent_error", `${nameOf(acquired)} is not whole in the bucket`, { cause: error });
    }
  }

  take(acquired: Released): void {
    this.#options.moved.take(acquired.row.id, waitingAs(acquired));
  }

  putBack(acquired: Released): Promise<void> {
    return this.#options.moved.putBack(acquired.row.id, waitingAs(acquired), asOf(acquired));
  }

  async #fetch(acquired: Released, place: { work: string; target: string }, signal: AbortSignal): Promise<void> {
    const { bucket, artifacts, moved, fetches } = this.#options;
    const { row, epoch, checkpoint } = acquired;
    using held = new DisposableStack();
    for (const { kind, key } of fetches.layersOf(checkpoint, nameOf(acquired)))
      if (kind !== "qemu") held.use(await artifacts.fetch(kind as ArtifactKind, key, signal));
    const { storage, vcpus, memoryMb, diskMb } = row;
    await download(bucket, {
      ...{ ...place, signal, bytesMax: checkpoint.bytes, writtenAt: checkpoint.at },
      manifest: { object: `${checkpoint.prefix}/manifest`, sha256: checkpoint.manifestSha256 },
      finish: (folder) => moved.finish(folder, { epoch, record: checkpoint.record, storage, vcpus, memoryMb, diskMb }),
    });
  }

  /** Any build of QEMU's version restores it; the one that has saved it is taken where the bucket has it. */
  async #fetchBuild({ checkpoint: { qemuBuild } }: Released): Promise<void> {
    if (qemuBuild === null) return;
    try {
      using _held = await this.#options.artifacts.fetch("qemu", qemuBuild, AbortSignal.timeout(fetchMs));
    } catch (error) {
      if (!(error instanceof CapsuleError && error.code === "unavailable") && !isTimeout(error)) throw error;
    }
  }

  async #turn(): Promise<Disposable> {
    if (this.#fetching < fetchesAtOnce) this.#fetching++;
    else if (this.#waiting.length >= waitingMax)
      throw new CapsuleError("unavailable", `${waitingMax} capsules wait to be fetched by this host, as many as may`);
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    return {
      [Symbol.dispose]: () => {
        const next = this.#waiting.shift();
        if (next === undefined) this.#fetching--;
        else next();
      },
    };
  }
}

/** Its folder is set aside by the epoch of its release, which stands in the name of the checkpoint. */
function asOf({ checkpoint: { prefix, savedRevision: revision } }: Released): ReleasedAs {
  return { epoch: Number(/\/(\d+)\.[^/]*$/.exec(prefix)?.[1] ?? 0), revision };
}

/** Its folder waits by the epoch that its row gets here. */
function waitingAs({ epoch, checkpoint: { savedRevision: revision } }: Released): ReleasedAs {
  return { epoch, revision };
}

function nameOf({ row }: Released): string {
  return `capsule ${row.id}`;
}

function isTimeout(error: unknown): boolean {
  return error instanceof Error && error.name === "TimeoutError";
}
