/** A bucket whose requests have a time, and are sent again a bounded number of times where that can help. */
import { setTimeout as delay } from "node:timers/promises";
import { BucketError, isObjectName, type Objects, type ToldClock } from "./objects.ts";

export interface Retries {
  /** How often a request is sent. */
  attempts: number;
  /** Time of one of them, with its body: 4 MiB, of which eight are under way. */
  attemptMs: number;
  /** Pause after the first one; each further pause is twice as long. */
  pauseMs: number;
  /** Age up to which an object may not be seen yet. */
  unseenMs: number;
}

const usual: Retries = { attempts: 5, attemptMs: 30_000, pauseMs: 200, unseenMs: 60_000 };
const unseenPauseMs = 1_000;
/** Ends a list that a bucket makes endless: the chunks of 4 TiB. */
const listedMax = 1_000_000;

export interface GetOptions {
  maxBytes: number;
  /** When it was written, in ms since 1970, by any host's clock. Until it is `unseenMs` old, a 404 is asked again. */
  writtenAt?: number | undefined;
  signal?: AbortSignal | undefined;
}

export class Bucket {
  readonly #objects: Objects;
  readonly #retries: Retries;
  #isUp = true;

  constructor(objects: Objects, retries: Partial<Retries> = {}) {
    this.#objects = objects;
    this.#retries = { ...usual, ...retries };
  }

  /** The last request that has ended was answered as it should be, an object that is not there included. */
  get isUp(): boolean {
    return this.#isUp;
  }

  get place(): string {
    return this.#objects.place;
  }

  get clock(): ToldClock | undefined {
    return this.#objects.clock;
  }

  async put(name: string, bytes: Uint8Array<ArrayBuffer>, signal?: AbortSignal): Promise<void> {
    requireName(name);
    await this.#repeated(signal, (each) => this.#objects.put(name, bytes, each));
  }

  async get(name: string, { maxBytes, writtenAt, signal }: GetOptions): Promise<Buffer<ArrayBuffer>> {
    requireName(name);
    const { unseenMs } = this.#retries;
    // A clock that is behind the writer's makes the object no younger than new.
    const age = writtenAt === undefined ? unseenMs : Math.max(0, Date.now() - writtenAt);
    const until = performance.now() + unseenMs - age;
    for (;;) {
      try {
        return await this.#repeated(signal, (each) => this.#objects.get(name, maxBytes, each));
      } catch (error) {
        if (!(error instanceof BucketError && error.isMissing) || performance.now() >= until) throw error;
      }
      await pause(Math.min(unseenPauseMs, unseenMs / 60), signal);
    }
  }

  async delete(name: string, signal?: AbortSignal): Promise<void> {
    requireName(name);
    await this.#repeated(signal, (each) => this.#objects.delete(name, each));
  }

  /** The names of all objects that begin with `prefix`, page by page. */
  async *list(prefix: string, signal?: AbortSignal): AsyncGenerator<string> {
    let after: string | undefined;
    for (let count = 0; ; ) {
      const behind = after;
      const { names, isTruncated } = await this.#repeated(signal, (each) => this.#objects.list(prefix, behind, each));
      yield* names;
      count += names.length;
      after = names.at(-1);
      if (!isTruncated || after === undefined) return;
      const isForward = behind === undefined || after > behind;
      if (!isForward || count >= listedMax)
        throw new BucketError(`${this.place} has sent a list without an end`, { httpStatus: 200, reason: "list" });
    }
  }

  async #repeated<T>(signal: AbortSignal | undefined, request: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const { attempts, attemptMs, pauseMs } = this.#retries;
    for (let attempt = 1; ; attempt++) {
      signal?.throwIfAborted();
      const limit = AbortSignal.timeout(attemptMs);
      try {
        const answer = await request(signal === undefined ? limit : AbortSignal.any([signal, limit]));
        this.#isUp = true;
        return answer;
      } catch (error) {
        signal?.throwIfAborted();
        const failure = limit.aborted ? this.#late() : error;
        this.#isUp = failure instanceof BucketError && failure.isMissing;
        if (attempt === attempts || !(failure instanceof BucketError && failure.isPassing)) throw failure;
      }
      await pause(pauseMs * 2 ** (attempt - 1) * (0.5 + Math.random()), signal);
    }
  }

  #late(): BucketError {
    const { attemptMs, attempts } = this.#retries;
    const times = attempts === 1 ? "" : `, ${attempts} times`;
    const message = `${this.place} has not answered within ${attemptMs / 1_000} s${times}`;
    return new BucketError(message, { reason: "late" });
  }
}

async function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  await delay(ms, undefined, signal === undefined ? {} : { signal }).catch((error: unknown) => {
    throw signal?.aborted ? signal.reason : error;
  });
}

function requireName(name: string): void {
  const isName: boolean = isObjectName(name);
  if (!isName) throw new Error(`${JSON.stringify(name.slice(0, 600))} cannot be the name of an object`);
}
