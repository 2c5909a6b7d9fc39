/**
 * The session of this browser tab. The key is in the tab's session storage only; a further tab gets it from one that is signed
 * in. Closing the last tab signs out, and so does the service when the key is revoked or has expired.
 */
import { type ReadonlySignal, signal } from "@preact/signals";
import { Client, hasCode, type SessionInfo } from "../../src/sdk/sdk.ts";
import { admitTerminals, deleteTerminals } from "./saved-terminals.ts";
import { clientOf } from "./service.ts";
import { TabHandover } from "./tab-handover.ts";
import { messageOf } from "./toasts.ts";

const storageKey = "key";
/** Between attempts to reach the service. */
const retryMs = 2_000;
/** For the other tabs' answer; the sign-in form is shown afterwards, and a later answer still signs in. */
const handoverMs = 300;

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

  readonly #tabs = new TabHandover({
    key: () => (this.#state.value.phase === "in" ? (this.#storage.getItem(storageKey) ?? undefined) : undefined),
    onKey: (key) => void this.#restoreBy(key),
    onSignedOut: (keyId) => {
      const state = this.#state.value;
      if (state.phase === "in" && state.session.keyId === keyId) this.#leave("You signed out in another tab.");
    },
  });

  constructor(storage: Storage = sessionStorage) {
    this.#storage = storage;
  }

  get state(): ReadonlySignal<AccountState> {
    return this.#state;
  }

  /** Signs in by the link's token if there is one, else by the key saved before a reload, else by another tab's. */
  async restore(token: string | undefined): Promise<void> {
    const saved = this.#storage.getItem(storageKey);
    if (token !== undefined) return await this.#restoreByLink(token);
    if (saved !== null) return await this.#restoreBy(saved);
    this.#state.value = { phase: "asking" };
    this.#tabs.ask();
    const asked = this.#state.value;
    await new Promise((resolve) => setTimeout(resolve, handoverMs));
    if (this.#state.value === asked) this.#state.value = { phase: "out" };
  }

  async #restoreByLink(token: string): Promise<void> {
    this.#state.value = { phase: "asking" };
    try {
      await this.signIn((await Client.signIn(token)).key);
    } catch (error) {
      this.#leave(`The link cannot be used: ${(error as Error).message}.`);
    }
  }

  async #restoreBy(key: string): Promise<void> {
    this.#state.value = { phase: "asking" };
    try {
      await this.#retrySignIn(key);
    } catch (error) {
      const why = hasCode(error, "unauthorized") ? "the key is no longer valid" : (error as Error).message;
      this.#leave(`You were signed out: ${why}.`);
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
    this.#tabs.stopAsking();
    const client = clientOf(key, () => this.#leave("You were signed out: the key is no longer valid."));
    const session = await client.session();
    this.#storage.setItem(storageKey, key);
    admitTerminals(this.#storage);
    this.#state.value = { phase: "in", client, session };
  }

  /** In every tab with this session. */
  signOut(): void {
    const state = this.#state.value;
    if (state.phase === "in") this.#tabs.signedOut(state.session.keyId);
    this.#leave();
  }

  #leave(reason?: string): void {
    this.#storage.removeItem(storageKey);
    deleteTerminals(this.#storage);
    this.#state.value = reason === undefined ? { phase: "out" } : { phase: "out", reason };
  }
}
