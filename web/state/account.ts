/**
 * Who is signed in. The key lives in this browser tab's session storage and nowhere else: closing the tab signs out,
 * and so does the service when the key is revoked or expires.
 */
import { type ReadonlySignal, signal } from "@preact/signals";
import { hasCode, type SessionInfo } from "../../src/sdk/sdk.ts";
import { forgetTerminals } from "./kept-terminals.ts";
import { redeemLink, Service } from "./service.ts";
import { said } from "./toasts.ts";

const place = "key";
/** Until the service is asked once more. */
const patienceMs = 2_000;

export interface SignedIn {
  service: Service;
  session: SessionInfo;
}

/** `asking`: a kept key or a link is being tried, for the first time or once more because of the problem. */
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

  /** By the link's token if there is one, else by the key kept over a reload. */
  async restore(token: string | undefined): Promise<void> {
    const kept = this.#storage.getItem(place);
    if (token === undefined && kept === null) return;
    this.#state.value = { phase: "asking" };
    try {
      if (token === undefined) await this.#signInAgain(kept!);
      else await this.signIn(await redeemLink(token));
    } catch (error) {
      const why = token === undefined ? "You were signed out" : "The link cannot be used";
      this.signOut(`${why}: ${(error as Error).message}.`);
    }
  }

  /** Only a service that refuses the key ends the session: one that cannot be asked now is asked again. */
  async #signInAgain(key: string): Promise<void> {
    for (;;) {
      try {
        return await this.signIn(key);
      } catch (error) {
        if (hasCode(error, "unauthorized")) throw error;
        this.#state.value = { phase: "asking", problem: said(error) };
        await new Promise((resolve) => setTimeout(resolve, patienceMs));
      }
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
