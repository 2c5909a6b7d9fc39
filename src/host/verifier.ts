/**
 * Reads large checkpoint files whole, in the background, one at a time. A pause does not wait for the hash of its memory,
 * and a resume does not wait for its verification; what was found damaged before is refused.
 */
import { rename, stat } from "node:fs/promises";
import { join } from "node:path";
import { CapsuleError } from "../wire/errors.ts";
import { type Manifest, openCheckpoint, parts, verifyWhole } from "./checkpoints.ts";
import { isMissing, sha256Of, writeJson } from "./files.ts";

export class Verifier {
  readonly #damaged = new Map<string, string>();
  readonly #onDamage: (folder: string, why: string) => void;
  #last: Promise<void> = Promise.resolve();
  #isStopped = false;

  constructor(onDamage: (folder: string, why: string) => void) {
    this.#onDamage = onDamage;
  }

  /** Throws CapsuleError("internal_error") when the checkpoint is known to be damaged. */
  requireSound(folder: string): void {
    const why = this.#damaged.get(folder);
    if (why !== undefined) throw new CapsuleError("internal_error", why);
  }

  /** Reads the checkpoint when its turn comes, and remembers if it is damaged. */
  verifyLater(folder: string): void {
    this.#queue(async () => {
      const manifest = await openCheckpoint(folder);
      if (manifest !== undefined) await verifyWhole(folder, manifest);
    }, folder);
  }

  /** Adds the hashes that sealing left out, when their turn comes. */
  hashLater(folder: string, manifest: Manifest): void {
    this.#queue(async () => {
      const path = join(folder, parts.manifest);
      const { ino } = await stat(path);
      const files = { ...manifest.files };
      for (const [name, record] of Object.entries(files)) {
        files[name] = { ...record, sha256: record.sha256 ?? (await sha256Of(join(folder, name))) };
      }
      await writeJson(`${path}.hashed`, { ...manifest, files }, { durable: true });
      // A later pause may have put another checkpoint here meanwhile.
      if ((await stat(path)).ino === ino) await rename(`${path}.hashed`, path);
    }, folder);
  }

  /** Forgets a folder that is gone or made anew. */
  forget(folder: string): void {
    this.#damaged.delete(folder);
  }

  /** Resolves when the queue is empty. */
  settled(): Promise<void> {
    return this.#last;
  }

  /** Drops what has not begun. */
  stop(): void {
    this.#isStopped = true;
  }

  #queue(work: () => Promise<void>, folder: string): void {
    this.#last = this.#last.then(async () => {
      if (this.#isStopped) return;
      try {
        await work();
      } catch (error) {
        if (isMissing(error)) return; // resumed or destroyed meanwhile
        const why = error instanceof Error ? error.message : String(error);
        this.#damaged.set(folder, why);
        this.#onDamage(folder, why);
      }
    });
  }
}
