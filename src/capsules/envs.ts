/** The environment variables of capsules. The database has them sealed; the host adds them to each command that it starts. */
import type { SecretKey } from "../secret.ts";
import { envsMaxBytes } from "../wire/capsule.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Runs } from "./runs.ts";
import type { CapsuleStore } from "./store.ts";

export type Variables = Readonly<Record<string, string>>;

export class Envs {
  readonly #store: CapsuleStore;
  readonly #runs: Runs;
  readonly #secret: SecretKey;
  /** Opened, of capsules that run. */
  readonly #open = new Map<string, Variables>();

  constructor(store: CapsuleStore, runs: Runs, secret: SecretKey) {
    this.#store = store;
    this.#runs = runs;
    this.#secret = secret;
  }

  /** Call it in the transaction that inserts the capsule. */
  keep(id: string, variables: Variables): void {
    if (Object.keys(variables).length > 0)
      this.#store.setEnvs(id, this.#secret.seal(place(id), JSON.stringify(variables)));
  }

  /** The capsule must run. Throws as `require`. */
  of(id: string): Variables {
    const known = this.#open.get(id);
    if (known !== undefined) return known;
    const variables = this.require(id);
    this.#open.set(id, variables);
    this.#runs.onEnd(id, () => this.#open.delete(id));
    return variables;
  }

  /** Throws CapsuleError("conflict") when they cannot be decrypted. */
  require(id: string): Variables {
    const sealed = this.#store.envs(id);
    if (sealed === undefined) return {};
    const text = this.#secret.open(place(id), sealed);
    if (text !== undefined) return JSON.parse(text) as Variables;
    throw new CapsuleError(
      "conflict",
      `the envs of capsule ${id} cannot be decrypted: the service has lost the secret.key that it was made under`,
    );
  }
}

function place(id: string): string {
  return `envs of ${id}`;
}

/** Throws CapsuleError("invalid_request"). */
export function requireSmall(variables: Variables): void {
  const bytes = Object.entries(variables).reduce((sum, pair) => sum + Buffer.byteLength(pair.join("")), 0);
  if (bytes <= envsMaxBytes) return;
  const message = `envs have ${bytes} bytes together; at most ${envsMaxBytes} are possible`;
  throw new CapsuleError("invalid_request", message, { details: { field: "envs" } });
}
