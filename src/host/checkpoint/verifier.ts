/**
 * Reads large checkpoint files whole, in the background, one at a time. A pause does not wait for the hash of its memory,
 * and a resume does not wait for its verification; what was found damaged before is refused.
 */
import { readFileSync, renameSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { CapsuleError } from "../../wire/errors.ts";
import { fileNames, type Manifest, openCheckpoint, verifyHashes } from "../disk/checkpoint-folder.ts";
import { freshFolder, isMissing, sha256Of, writeJson } from "../disk/files.ts";

/** How long a new checkpoint rests before it is read: one that is resumed from at once need not be. */
export const hashDelayMs = 5_000;

export class Verifier {
  readonly #damaged = new Map<string, string>();
  readonly #onDamage: (folder: string, why: string) => void;
  /** Of its own, on the checkpoints' file system. */
  readonly #scratch: string;
  readonly #delayed = new Set<NodeJS.Timeout>();
  #last: Promise<void> = Promise.resolve();
  readonly #stopping = new AbortController();

  constructor(onDamage: (folder: string, why: string) => void, scratch: string) {
    this.#onDamage = onDamage;
    this.#scratch = scratch;
  }

  /** Throws CapsuleError("internal_error") when the checkpoint is known to be damaged. */
  requireSound(folder: string): void {
    const why = this.#damaged.get(folder);
    if (why !== undefined) throw new CapsuleError("internal_error", why);
  }

  /** Reads the checkpoint when its turn comes, and remembers if it is damaged. */
  verifyLater(folder: string): void {
    this.#queue(folder, async () => {
      const manifest = await openCheckpoint(folder);
      if (manifest !== undefined) await verifyHashes(folder, manifest, this.#stopping.signal);
    });
  }

  /** Adds the hashes that sealing left out, when it has rested and its turn comes. */
  hashLater(folder: string): void {
    const timer = setTimeout(() => {
      this.#delayed.delete(timer);
      this.#hash(folder);
    }, hashDelayMs).unref();
    this.#delayed.add(timer);
  }

  /** Forgets a folder that is gone or made anew. */
  forget(folder: string): void {
    this.#damaged.delete(folder);
  }

  /** Resolves when the queue is empty. */
  settled(): Promise<void> {
    return this.#last;
  }

  /** Drops what has not begun, and breaks off what has: the next life reads it anew. */
  stop(): void {
    this.#stopping.abort();
    for (const timer of this.#delayed) clearTimeout(timer);
    this.#delayed.clear();
  }

  #hash(folder: string): void {
    this.#queue(folder, async (before) => {
      const path = join(folder, fileNames.manifest);
      const manifest = JSON.parse(before) as Manifest;
      for (const [name, record] of Object.entries(manifest.files)) {
        record.sha256 ??= await sha256Of(join(folder, name), this.#stopping.signal);
      }
      await freshFolder(this.#scratch);
      try {
        const hashed = join(this.#scratch, fileNames.manifest);
        await writeJson(hashed, manifest, { durable: true });
        // Nothing of ours runs between these two. A name is replaced and none added: whoever removes the folder at this
        // moment has listed what is in it already.
        if (textOf(folder) === before) renameSync(hashed, path);
      } finally {
        await rm(this.#scratch, { recursive: true, force: true });
      }
    });
  }

  /** What fails because another checkpoint, or none, has taken the place of this one is no damage. */
  #queue(folder: string, work: (manifestText: string) => Promise<void>): void {
    this.#last = this.#last.then(async () => {
      const before = textOf(folder);
      if (this.#stopping.signal.aborted || before === undefined) return;
      try {
        await work(before);
      } catch (error) {
        if (this.#stopping.signal.aborted || isOnItsWayOut(error) || textOf(folder) !== before) return;
        const why = error instanceof Error ? error.message : String(error);
        this.#damaged.set(folder, why);
        this.#onDamage(folder, why);
      }
    });
  }
}

/** A file that is missing is found by whoever opens the checkpoint; to us it rather says that the others follow. */
function isOnItsWayOut(error: unknown): boolean {
  return isMissing(error) || (error instanceof Error && isMissing(error.cause));
}

/** The manifest as it stands, which tells one checkpoint from another; undefined when there is none. */
function textOf(folder: string): string | undefined {
  try {
    return readFileSync(join(folder, fileNames.manifest), "utf8");
  } catch {
    return undefined;
  }
}
