/** The secrets of capsules under which URLs of their files are signed. */
import { randomBytes } from "node:crypto";
import { CapsuleError } from "../wire/errors.ts";
import type { CapsuleStore } from "./store.ts";

const secretBytes = 32;

export class UrlSecrets {
  readonly #store: CapsuleStore;

  constructor(store: CapsuleStore) {
    this.#store = store;
  }

  /** The first call makes it. Throws CapsuleError("not_found"). */
  of(teamId: string, id: string): Uint8Array {
    this.#store.require(teamId, id);
    const known = this.#store.urlSecret(id);
    if (known) return known;
    const made = randomBytes(secretBytes);
    this.#store.setUrlSecret(id, made); // nothing, if another process has made one meanwhile
    return this.#store.urlSecret(id) ?? made;
  }

  /** The same of any team's capsule; null: none was made yet. Throws CapsuleError("not_found"). */
  known(id: string): Uint8Array | null {
    const secret = this.#store.urlSecret(id);
    if (secret === undefined) throw new CapsuleError("not_found", `there is no capsule ${id}`);
    return secret;
  }
}
