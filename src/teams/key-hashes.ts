/**
 * Hashes of presented keys, each made once in a turn of the event loop: what arrives together is mostly of one caller. The
 * texts are let go with the turn, so that none stays in memory for longer than the request that brought it.
 */
import { hash } from "node:crypto";

/** More keys in one turn than this are hashed each time they come. */
const keysMax = 1_000;

export class KeyHashes {
  readonly #ofTurn = new Map<string, string>();

  of(key: string): string {
    const known = this.#ofTurn.get(key);
    if (known !== undefined) return known;
    const made = hashOf(key);
    if (this.#ofTurn.size === 0) setImmediate(() => this.#ofTurn.clear());
    if (this.#ofTurn.size < keysMax) this.#ofTurn.set(key, made);
    return made;
  }

  /** How many texts are kept now. */
  get size(): number {
    return this.#ofTurn.size;
  }
}

/** SHA-256 in hexadecimal digits. */
export function hashOf(key: string): string {
  return hash("sha256", key, "hex");
}
