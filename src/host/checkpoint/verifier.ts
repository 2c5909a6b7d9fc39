/**
 * Reads large checkpoint files in the background, one checkpoint at a time and a quarter of the time: hashes those of a pause
 * some seconds after it, and verifies those of a base or template at its first use. A checkpoint that was found damaged is
 * refused from then on.
 */
import { existsSync, readFileSync, renameSync } from "node:fs";
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../../wire/errors.ts";
import { fileNames, largeFiles, openCheckpoint, verifyHashes } from "../disk/checkpoint-folder.ts";
import { freshFolder, isMissing, syncFile, syncFolder } from "../disk/files.ts";
import { encodeHashes, hashFiles } from "../disk/hashes.ts";
import { decodeManifest, hashesName } from "../disk/manifest.ts";

/** Delay before a new checkpoint is hashed, which spares those that are resumed at once. */
export const hashDelayMs = 5_000;
/** Time without work after each piece, as a multiple of the time that it took. */
const idleShare = 3;

export type Pause = (tookMs: number, signal: AbortSignal) => Promise<void>;

const idle: Pause = (tookMs, signal) => delay(idleShare * tookMs, undefined, { signal, ref: false });

export class Verifier {
  readonly #damaged = new Map<string, string>();
  readonly #onDamage: (folder: string, why: string) => void;
  /** A folder of its own on the checkpoints' file system. */
  readonly #scratch: string;
  readonly #pause: Pause;
  readonly #delayed = new Map<string, NodeJS.Timeout>();
  /** Of folders with work, aborted when they are forgotten. */
  readonly #work = new Map<string, AbortController>();
  readonly #verified = new Set<string>();
  #last: Promise<void> = Promise.resolve();
  #isStopping = false;

  constructor(onDamage: (folder: string, why: string) => void, scratch: string, pause = idle) {
    this.#onDamage = onDamage;
    this.#scratch = scratch;
    this.#pause = pause;
  }

  /** Throws CapsuleError("internal_error") when the checkpoint is known to be damaged. */
  requireSound(folder: string): void {
    const why = this.#damaged.get(folder);
    if (why !== undefined) throw new CapsuleError("internal_error", why);
  }

  /** Whether the checkpoint is not known to be damaged. */
  readonly isSound = (folder: string): boolean => !this.#damaged.has(folder);

  /** Queues the verification of a base or template, once in the daemon's life. */
  verifyOnce(folder: string): void {
    if (this.#verified.has(folder)) return;
    this.#verified.add(folder);
    this.#queue(folder, async (_, signal) => {
      const manifest = await openCheckpoint(folder);
      if (manifest !== undefined) await verifyHashes(folder, manifest, this.#hashing(signal));
    });
  }

  /** Queues, after the delay, the hashes of a pause's large files. Called again meanwhile, the delay begins anew. */
  hashLater(folder: string): void {
    clearTimeout(this.#delayed.get(folder));
    const timer = setTimeout(() => {
      this.#delayed.delete(folder);
      this.#hash(folder);
    }, hashDelayMs).unref();
    this.#delayed.set(folder, timer);
  }

  /** Queues the hashes of those folders that have a checkpoint without them. Reads no file of the others. */
  hashMissing(folders: string[]): void {
    for (const folder of folders) {
      const [isThere, isHashed] = [fileNames.manifest, hashesName].map((name) => existsSync(join(folder, name)));
      if (isThere && !isHashed) this.#hash(folder);
    }
  }

  /** Call before the folder is removed or replaced: nothing is added to it any more. */
  forget(folder: string): void {
    clearTimeout(this.#delayed.get(folder));
    this.#delayed.delete(folder);
    this.#damaged.delete(folder);
    this.#verified.delete(folder);
    this.#work.get(folder)?.abort();
    this.#work.delete(folder);
  }

  /** Resolves when the queue is empty. */
  settled(): Promise<void> {
    return this.#last;
  }

  /** Drops and aborts all work, and resolves when none runs; the next daemon makes the hashes that are missing. */
  stop(): Promise<void> {
    this.#isStopping = true;
    for (const timer of this.#delayed.values()) clearTimeout(timer);
    this.#delayed.clear();
    for (const abort of this.#work.values()) abort.abort();
    return this.settled();
  }

  #hash(folder: string): void {
    this.#queue(folder, async (before, signal) => {
      if (existsSync(join(folder, hashesName))) return;
      const manifest = decodeManifest(JSON.parse(before));
      if (manifest.hashes === null) return; // format 1
      const paths = Object.fromEntries(largeFiles(manifest).map((name) => [name, join(folder, name)]));
      const hashes = await hashFiles(paths, this.#hashing(signal));
      await freshFolder(this.#scratch);
      try {
        const hashed = join(this.#scratch, hashesName);
        await writeFile(hashed, encodeHashes(hashes), { mode: 0o600 });
        await syncFile(hashed);
        // In one turn of the event loop, so that the folder is neither removed nor replaced in between.
        if (signal.aborted || textOf(folder) !== before) return;
        renameSync(hashed, join(folder, hashesName));
        await syncFolder(folder);
      } finally {
        await rm(this.#scratch, { recursive: true, force: true });
      }
    });
  }

  #hashing(signal: AbortSignal) {
    return { signal, pause: (tookMs: number) => this.#pause(tookMs, signal) };
  }

  /** Takes the place of earlier work on the folder. A failure is no damage if the checkpoint was removed or replaced meanwhile. */
  #queue(folder: string, work: (manifestText: string, signal: AbortSignal) => Promise<void>): void {
    this.#work.get(folder)?.abort();
    const abort = new AbortController();
    this.#work.set(folder, abort);
    const { signal } = abort;
    this.#last = this.#last.then(async () => {
      const before = textOf(folder);
      try {
        if (!this.#isStopping && !signal.aborted && before !== undefined) await work(before, signal);
      } catch (error) {
        if (this.#isStopping || signal.aborted || isBeingRemoved(error) || textOf(folder) !== before) return;
        const why = error instanceof Error ? error.message : String(error);
        this.#damaged.set(folder, why);
        this.#onDamage(folder, why);
      } finally {
        if (this.#work.get(folder) === abort) this.#work.delete(folder);
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
