/**
 * Who is signed in. The key lives in this browser tab's session storage and nowhere else: closing the tab signs out,
 * and so does the service when the key is revoked or expires.
 */
import { type ReadonlySignal, signal } from "@preact/signals";
import type { SessionInfo } from "../../src/sdk/sdk.ts";
import { forgetTerminals } from "./kept-terminals.ts";
import { redeemLink, Service } from "./service.ts";

const place = "key";

export interface SignedIn {
  service: Service;
  session: SessionInfo;
}

/** `asking`: a kept key or a link is being tried. */
export type AccountState = { phase: "asking" } | { phase: "out"; reason?: string } | ({ phase: "in" } & SignedIn);

export class Account {
  readonly #state = signal<AccountState>({ phase: "out" });
  readonly #storage: Storage;

  constructor(storage: Storage = sessionStorage) {
    this.#storage = storage;
  }

  get state(): ReadonlySignal<AccountState> {
    return this.#state;
  }

  /** By the link's token if there is one, else by the key kept over a reload. */
  async restore(token: string | undefined): Promise<void> {
    const kept = this.#storage.getItem(place);
    if (token === undefined && kept === null) return;
    this.#state.value = { phase: "asking" };
    try {
      await this.signIn(token === undefined ? kept! : await redeemLink(token));
    } catch (error) {
      const why = token === undefined ? "You were signed out" : "The link cannot be used";
      this.signOut(`${why}: ${(error as Error).message}.`);
    }
  }

  /** Throws what the service says about the key. */
  async signIn(key: string): Promise<void> {
    const service = new Service(key, () => this.signOut("You were signed out: the key is no longer valid."));
    const session = await service.session();
    this.#storage.setItem(place, key);
    this.#state.value = { phase: "in", service, session };
  }

  signOut(reason?: string): void {
    this.#storage.removeItem(place);
    forgetTerminals(this.#storage);
    this.#state.value = reason === undefined ? { phase: "out" } : { phase: "out", reason };
  }
}
