/**
 * The session's way into a second tab of the browser: the tab asks the others of this origin for their key, and one that is
 * signed in answers. The key passes through memory only. Signing out in one tab signs out those that use the same key.
 */

interface Handlers {
  /** The key that this tab gives to another one; undefined: it is signed out. */
  key: () => string | undefined;
  /** A key arrived, after `ask`. */
  onKey: (key: string) => void;
  /** Another tab has signed out of the session with this key's id. */
  onSignedOut: (keyId: string) => void;
}

/** Name of the channel. */
const name = "session";

export class TabHandover {
  readonly #channel: BroadcastChannel;
  readonly #handlers: Handlers;
  #isAsking = false;

  constructor(handlers: Handlers) {
    this.#handlers = handlers;
    this.#channel = new BroadcastChannel(name);
    this.#channel.onmessage = ({ data }: { data: unknown }) => this.#hear(data);
  }

  /** The first answer counts, however late it comes; `stopAsking` refuses it. */
  ask(): void {
    this.#isAsking = true;
    this.#channel.postMessage({ type: "ask" });
  }

  stopAsking(): void {
    this.#isAsking = false;
  }

  signedOut(keyId: string): void {
    this.#channel.postMessage({ type: "signed-out", keyId });
  }

  close(): void {
    this.#channel.close();
  }

  #hear(data: unknown): void {
    const { type, key, keyId } = (data ?? {}) as Record<string, unknown>;
    if (type === "ask") {
      const own = this.#handlers.key();
      if (own !== undefined) this.#channel.postMessage({ type: "key", key: own });
    } else if (type === "key" && typeof key === "string" && this.#isAsking) {
      this.#isAsking = false;
      this.#handlers.onKey(key);
    } else if (type === "signed-out" && typeof keyId === "string") {
      this.#handlers.onSignedOut(keyId);
    }
  }
}
