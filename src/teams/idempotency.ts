/**
 * Requests with an Idempotency-Key, so that one that is sent again changes nothing again and gets the first answer. The answer is
 * kept in the transaction of the change itself: a server that ends in between has either both or none.
 */
import type { IdempotencyId, IdempotencyRows } from "../db/idempotency-rows.ts";
import type { SecretKey } from "../secret.ts";
import { CapsuleError } from "../wire/errors.ts";
import { idempotencyKeepSec, idempotencyKeysMax, idempotencyMaxBytes } from "../wire/idempotency.ts";

export interface KeyedRequest extends IdempotencyId {
  /** Equal for bodies that are the same JSON value. */
  bodyHash: string;
}

export interface KeptAnswer {
  status: number;
  /** JSON. */
  answer: string;
}

const keepMs = idempotencyKeepSec * 1_000;
const most = { rows: idempotencyKeysMax, bytes: idempotencyMaxBytes };

/**
 * The answer that is kept for a request, or that it is the first one with its key. `host`: it may have answered one already, and the
 * request is to be made there; null is this host.
 */
export type Begun =
  | { first: FirstRequest; kept?: never; host?: string | null }
  | { kept: KeptAnswer; first?: never; host?: never };

/** The first request with its key. Requests with the same key wait until `end`. */
export class FirstRequest {
  readonly #rows: IdempotencyRows;
  readonly #request: KeyedRequest;
  readonly #now: () => number;
  readonly end: () => void;

  constructor(rows: IdempotencyRows, request: KeyedRequest, now: () => number, end: () => void) {
    this.#rows = rows;
    this.#request = request;
    this.#now = now;
    this.end = end;
  }

  /** Keeps the answer. Call it in the transaction of the change. */
  keep(answer: KeptAnswer): void {
    this.#rows.keep({ ...this.#request, ...answer, keptAt: this.#now() }, most);
  }

  /** As `keep` keeps it; for another place than this database. */
  keyed(answer: KeptAnswer): KeyedRequest & KeptAnswer & { keepMs: number } {
    return { ...this.#request, ...answer, keepMs };
  }

  /** The kept answer's body becomes `answer`. */
  replace(answer: string): void {
    this.#rows.replace(this.#request, answer);
  }

  /** Nothing is kept: the next request with the key is a first one. */
  forget(): void {
    this.#rows.remove(this.#request);
  }
}

export class Idempotency {
  readonly #rows: IdempotencyRows;
  readonly #secret: Pick<SecretKey, "fingerprint">;
  readonly #now: () => number;
  readonly #underWay = new Map<string, { bodyHash: string; ended: Promise<void> }>();

  constructor(rows: IdempotencyRows, secret: Pick<SecretKey, "fingerprint">, now: () => number) {
    this.#rows = rows;
    this.#secret = secret;
    this.#now = now;
  }

  /**
   * Resolves with the answer that is kept for the request, or as the first one with its key; waits while another one with the key
   * is under way. Rejects with "conflict" when the key was used with another body, and with the signal's reason.
   */
  async begin(asked: KeyedRequest, signal: AbortSignal): Promise<Begun> {
    // A body may have variables, which a plain hash would let be guessed.
    const request = { ...asked, bodyHash: this.#secret.fingerprint(asked.bodyHash) };
    const id = JSON.stringify([request.teamId, request.route, request.key]);
    for (;;) {
      const other = this.#underWay.get(id);
      const kept = this.#kept(request);
      const bodyHash = other?.bodyHash ?? kept?.bodyHash;
      if (bodyHash !== undefined && bodyHash !== request.bodyHash) {
        throw new CapsuleError("conflict", "the Idempotency-Key was used with another body; use a new key");
      }
      if (other === undefined) return kept === undefined ? { first: this.#first(id, request) } : { kept };
      await unlessAborted(other.ended, signal);
    }
  }

  /** Removes answers whose time is over, a bounded number. */
  forget(): void {
    this.#rows.forget(this.#now() - keepMs);
  }

  #kept(request: KeyedRequest) {
    const row = this.#rows.get(request);
    return row !== undefined && row.keptAt > this.#now() - keepMs ? row : undefined;
  }

  #first(id: string, request: KeyedRequest): FirstRequest {
    const { promise: ended, resolve } = Promise.withResolvers<void>();
    this.#underWay.set(id, { bodyHash: request.bodyHash, ended });
    return new FirstRequest(this.#rows, request, this.#now, () => {
      if (this.#underWay.get(id)?.ended === ended) this.#underWay.delete(id);
      resolve();
    });
  }
}

async function unlessAborted(promise: Promise<void>, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const abort = () => reject(signal.reason);
  signal.addEventListener("abort", abort);
  try {
    await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}
