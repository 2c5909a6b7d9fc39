/**
 * Reads large checkpoint files in the background, one checkpoint at a time and a quarter of the time: hashes those of a pause
 * some seconds after it, and verifies those of a base or template at its first use. A checkpoint that was found damaged is
 * refused from then on. Other failures, like those of a full disk, are reported and the work is done later.
 */
import { existsSync, readFileSync, renameSync } from "node:fs";
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError, messageOf } from "../../wire/errors.ts";
import { fileNames, largeFiles, openCheckpoint, readManifest, verifyHashes } from "../disk/checkpoint-folder.ts";
import { freshFolder, isMissing, syncFile, syncFolder } from "../disk/files.ts";
import { encodeHashes, type Hashes, hashFiles } from "../disk/hashes.ts";
import { hashesName } from "../disk/manifest.ts";

/** Delay before a new checkpoint is hashed, which spares those that are resumed at once. */
export const hashDelayMs = 5_000;
/** Delay before hashes that could not be made are tried again. */
export const retryDelayMs = 600_000;
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
  /** The folders among them that wait for the delay of a pause, and not for another attempt. */
  readonly #rested = new Set<string>();
  /** For each folder with work; aborted when it is forgotten. */
  readonly #work = new Map<string, AbortController>();
  readonly #verified = new Set<string>();
  #last: Promise<void> = Promise.resolve();
  #isStopping = false;

  /** `onDamage` is called for damage, and for work that failed. */
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

  /** Queues the verification of a base or template: once in the daemon's life, and again after a failure that is no damage. */
  verifyOnce(folder: string): void {
    if (this.#verified.has(folder)) return;
    this.#verified.add(folder);
    const verify = async (_: string, signal: AbortSignal) => {
      const manifest = await openCheckpoint(folder);
      if (manifest !== undefined) await verifyHashes(folder, manifest, this.#hashing(signal));
    };
    this.#queue(folder, verify, () => this.#verified.delete(folder));
  }

  /** Queues, after the delay, the hashes of a pause's large files. Called again meanwhile, the delay begins anew. */
  hashLater(folder: string, delayMs = hashDelayMs): void {
    clearTimeout(this.#delayed.get(folder));
    if (delayMs === hashDelayMs) this.#rested.add(folder);
    else this.#rested.delete(folder);
    const timer = setTimeout(() => {
      this.#delayed.delete(folder);
      this.#rested.delete(folder);
      this.#hash(folder);
    }, delayMs).unref();
    this.#delayed.set(folder, timer);
  }

  /** Queues them at once where they wait for the delay of a pause: the capsule is on its way to another host. */
  hashNow(folder: string): void {
    if (this.#rested.has(folder)) this.hashLater(folder, 0);
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
    this.#rested.delete(folder);
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
    const hash = async (before: string, signal: AbortSignal) => {
      if (existsSync(join(folder, hashesName))) return;
      const manifest = await readManifest(folder);
      if (manifest === undefined || manifest.hashes === null) return; // format 1
      const paths = Object.fromEntries(largeFiles(manifest).map((name) => [name, join(folder, name)]));
      const hashes = await hashFiles(paths, this.#hashing(signal));
      await this.#add(folder, hashes, () => !signal.aborted && textOf(folder) === before).catch((cause: unknown) => {
        throw new Error(`its hashes cannot be written: ${messageOf(cause)}`, { cause });
      });
    };
    this.#queue(folder, hash, () => this.hashLater(folder, retryDelayMs));
  }

  async #add(folder: string, hashes: Hashes, isCurrent: () => boolean): Promise<void> {
    await freshFolder(this.#scratch);
    try {
      const hashed = join(this.#scratch, hashesName);
      await writeFile(hashed, encodeHashes(hashes), { mode: 0o600 });
      await syncFile(hashed);
      // In one tick of the event loop, so that the folder is neither removed nor replaced in between.
      if (!isCurrent()) return;
      renameSync(hashed, join(folder, hashesName));
      await syncFolder(folder);
    } finally {
      await rm(this.#scratch, { recursive: true, force: true });
    }
  }

  #hashing(signal: AbortSignal) {
    return { signal, pause: (tookMs: number) => this.#pause(tookMs, signal) };
  }

  /**
   * Takes the place of earlier work on the folder. A failure is none if the checkpoint was removed or replaced meanwhile;
   * `onFailure` is called for one that is no damage either.
   */
  #queue(
    folder: string,
    work: (manifestText: string, signal: AbortSignal) => Promise<void>,
    onFailure: () => void,
  ): void {
    this.#work.get(folder)?.abort();
    const abort = new AbortController();
    this.#work.set(folder, abort);
    const { signal } = abort;
    this.#last = this.#last.then(async () => {
      let before: string | undefined;
      try {
        before = textOf(folder);
        if (!this.#isStopping && !signal.aborted && before !== undefined) await work(before, signal);
      } catch (error) {
        if (this.#isStopping || signal.aborted || isBeingRemoved(error) || isReplaced(folder, before)) return;
        this.#report(folder, error, onFailure);
      } finally {
        if (this.#work.get(folder) === abort) this.#work.delete(folder);
      }
    });
  }

  #report(folder: string, error: unknown, onFailure: () => void): void {
    const why = messageOf(error);
    if (isDamage(error)) {
      this.#damaged.set(folder, why);
      this.#onDamage(folder, why);
    } else if (!isOfLaterRelease(error)) {
      this.#onDamage(folder, `it could not be checked, and will be again: ${why}`);
      onFailure();
    }
  }
}

/** Wrong bytes, or a file that the disk cannot read. Other errors of the system say nothing about the files. */
function isDamage(error: unknown): boolean {
  const { errno, code } = ((error instanceof CapsuleError ? error.cause : error) ?? {}) as NodeJS.ErrnoException;
  if (errno !== undefined) return code === "EIO";
  return error instanceof CapsuleError && error.code === "internal_error";
}

function isOfLaterRelease(error: unknown): boolean {
  return error instanceof CapsuleError && error.code === "conflict";
}

/** A missing file means that the checkpoint is being removed; openCheckpoint reports one that is missing for good. */
function isBeingRemoved(error: unknown): boolean {
  return isMissing(error) || (error instanceof Error && isMissing(error.cause));
}

/** The manifest's text, which identifies the checkpoint; undefined when there is none. Throws when it cannot be read. */
function textOf(folder: string): string | undefined {
  try {
    return readFileSync(join(folder, fileNames.manifest), "utf8");
  } catch (error) {
    if (isMissing(error)) return undefined;
    throw error;
  }
}

function isReplaced(folder: string, before: string | undefined): boolean {
  try {
    return textOf(folder) !== before;
  } catch {
    return false;
  }
}
