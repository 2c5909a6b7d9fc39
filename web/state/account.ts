/**
 * The session of this browser tab. The key is in the tab's session storage only: closing the tab signs out, and so does
 * the service when the key is revoked or has expired.
 */
import { type ReadonlySignal, signal } from "@preact/signals";
import { Client, hasCode, type SessionInfo } from "../../src/sdk/sdk.ts";
import { deleteTerminals } from "./saved-terminals.ts";
import { clientOf } from "./service.ts";
import { messageOf } from "./toasts.ts";

const storageKey = "key";
/** Between attempts to reach the service. */
const retryMs = 2_000;

export interface SignedIn {
  client: Client;
  session: SessionInfo;
}

/** `asking`: a saved key or a link is being tried; `problem`: why the last attempt failed. */
export type AccountState =
  | { phase: "asking"; problem?: string }
  | { phase: "out"; reason?: string }
  | ({ phase: "in" } & SignedIn);

export class Account {
  readonly #state = signal<AccountState>({ phase: "out" });
  readonly #storage: Storage;

  constructor(storage: Storage = sessionStorage) {
    this.#storage = storage;
  }

  get state(): ReadonlySignal<AccountState> {
    return this.#state;
  }

  /** Signs in by the link's token if there is one, else by the key saved before a reload. */
  async restore(token: string | undefined): Promise<void> {
    const saved = this.#storage.getItem(storageKey);
    if (token === undefined && saved === null) return;
    this.#state.value = { phase: "asking" };
    try {
      if (token === undefined) await this.#retrySignIn(saved!);
      else await this.signIn((await Client.signIn(token)).key);
    } catch (error) {
      const why = token === undefined ? "You were signed out" : "The link cannot be used";
      this.signOut(`${why}: ${(error as Error).message}.`);
    }
  }

  /** Retries until the service accepts or refuses the key. */
  async #retrySignIn(key: string): Promise<void> {
    for (;;) {
      try {
        return await this.signIn(key);
      } catch (error) {
        if (hasCode(error, "unauthorized")) throw error;
        this.#state.value = { phase: "asking", problem: messageOf(error) };
        await new Promise((resolve) => setTimeout(resolve, retryMs));
      }
    }
  }

  /** Throws what the service says about the key. */
  async signIn(key: string): Promise<void> {
    const client = clientOf(key, () => this.signOut("You were signed out: the key is no longer valid."));
    const session = await client.session();
    this.#storage.setItem(storageKey, key);
    this.#state.value = { phase: "in", client, session };
  }

  signOut(reason?: string): void {
    this.#storage.removeItem(storageKey);
    deleteTerminals(this.#storage);
    this.#state.value = reason === undefined ? { phase: "out" } : { phase: "out", reason };
  }
}
