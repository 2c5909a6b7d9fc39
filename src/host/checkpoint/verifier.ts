/**
 * Hashes and verifies large checkpoint files in the background, one checkpoint at a time. A pause does not wait for the hash
 * of its memory, and a resume does not wait for the verification, but refuses a checkpoint that was found damaged before.
 */
import { readFileSync, renameSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { CapsuleError } from "../../wire/errors.ts";
import { fileNames, openCheckpoint, verifyHashes } from "../disk/checkpoint-folder.ts";
import { freshFolder, isMissing, sha256Of, writeJson } from "../disk/files.ts";
import type { Manifest } from "../disk/manifest.ts";

/** Delay before a new checkpoint is hashed, which spares those that are resumed at once. */
export const hashDelayMs = 5_000;

export class Verifier {
  readonly #damaged = new Map<string, string>();
  readonly #onDamage: (folder: string, why: string) => void;
  /** A folder of its own on the checkpoints' file system. */
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

  /** Queues the verification of a checkpoint. */
  verifyLater(folder: string): void {
    this.#queue(folder, async () => {
      const manifest = await openCheckpoint(folder);
      if (manifest !== undefined) await verifyHashes(folder, manifest, this.#stopping.signal);
    });
  }

  /** Queues, after the delay, the hashes of large files, which writeManifest left out. */
  hashLater(folder: string): void {
    const timer = setTimeout(() => {
      this.#delayed.delete(timer);
      this.#hash(folder);
    }, hashDelayMs).unref();
    this.#delayed.add(timer);
  }

  /** Call when the folder was removed or replaced. */
  forget(folder: string): void {
    this.#damaged.delete(folder);
  }

  /** Resolves when the queue is empty. */
  settled(): Promise<void> {
    return this.#last;
  }

  /** Drops and aborts all work, and resolves when none runs; the next daemon verifies everything anew. */
  stop(): Promise<void> {
    this.#stopping.abort();
    for (const timer of this.#delayed) clearTimeout(timer);
    this.#delayed.clear();
    return this.settled();
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
        // Compare and rename run in one turn of the event loop. The rename replaces a name and adds none, so a concurrent
        // removal of the folder, which may have listed it already, still succeeds.
        if (textOf(folder) === before) renameSync(hashed, path);
      } finally {
        await rm(this.#scratch, { recursive: true, force: true });
      }
    });
  }

  /** A failure is no damage if the checkpoint was removed or replaced meanwhile. */
  #queue(folder: string, work: (manifestText: string) => Promise<void>): void {
    this.#last = this.#last.then(async () => {
      const before = textOf(folder);
      if (this.#stopping.signal.aborted || before === undefined) return;
      try {
        await work(before);
      } catch (error) {
        if (this.#stopping.signal.aborted || isBeingRemoved(error) || textOf(folder) !== before) return;
        const why = error instanceof Error ? error.message : String(error);
        this.#damaged.set(folder, why);
        this.#onDamage(folder, why);
      }
    });
  }
}

/** A missing file means that the checkpoint is being removed; openCheckpoint reports one that is missing for good. */
function isBeingRemoved(error: unknown): boolean {
  return isMissing(error) || (error instanceof Error && isMissing(error.cause));
}

/** The manifest's text, which identifies the checkpoint; undefined when there is none. */
function textOf(folder: string): string | undefined {
  try {
    return readFileSync(join(folder, fileNames.manifest), "utf8");
  } catch {
    return undefined;
  }
}
