/** Work that several callers need at once: one of each key at a time, whose outcome all of them get. */

interface Running<T> {
  outcome: Promise<T>;
  /** Callers that have not left. */
  callers: number;
  ending: AbortController;
}

export interface JointWorkOptions {
  /** Work that nobody waits for any longer goes on; by default it is aborted. */
  isKept?: boolean;
  /** Work that takes longer is aborted. */
  limitMs: number;
}

export class JointWork<T> {
  readonly #options: JointWorkOptions;
  readonly #running = new Map<string, Running<T>>();
  readonly #closed = new AbortController();

  constructor(options: JointWorkOptions) {
    this.#options = options;
  }

  /** Joins the work under way, or begins it. Rejects with the signal's reason as soon as that fires. */
  async run(key: string, work: (signal: AbortSignal) => Promise<T>, signal?: AbortSignal): Promise<T> {
    signal?.throwIfAborted();
    let joined = this.#running.get(key);
    while (joined?.ending.signal.aborted) {
      await joined.outcome.catch(() => {}); // what it has begun is undone first
      joined = this.#running.get(key);
    }
    signal?.throwIfAborted();
    joined ??= this.#begin(key, work);
    joined.callers++;
    try {
      return await untilAborted(joined.outcome, signal);
    } finally {
      if (--joined.callers === 0 && this.#options.isKept !== true)
        joined.ending.abort(new Error("nobody waits for it"));
    }
  }

  /** Aborts all work, and every later one. Resolves when nothing is under way. */
  async close(reason: Error): Promise<void> {
    this.#closed.abort(reason);
    await Promise.allSettled([...this.#running.values()].map(({ outcome }) => outcome));
  }

  #begin(key: string, work: (signal: AbortSignal) => Promise<T>): Running<T> {
    this.#closed.signal.throwIfAborted();
    const ending = new AbortController();
    const limit = setTimeout(() => ending.abort(new Error("it took too long")), this.#options.limitMs);
    limit.unref();
    const outcome = work(AbortSignal.any([ending.signal, this.#closed.signal])).finally(() => {
      clearTimeout(limit);
      this.#running.delete(key);
    });
    outcome.catch(() => {}); // its callers may have left
    const begun = { outcome, callers: 0, ending };
    this.#running.set(key, begun);
    return begun;
  }
}

/** At most so many pieces of work at a time, in the order in which they came. */
export class Lanes {
  #free: number;
  readonly #waiting: (() => void)[] = [];

  constructor(count: number) {
    this.#free = count;
  }

  async run<T>(work: () => Promise<T>, signal: AbortSignal): Promise<T> {
    if (this.#free > 0) this.#free -= 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    try {
      signal.throwIfAborted();
      return await work();
    } finally {
      const next = this.#waiting.shift();
      if (next === undefined) this.#free += 1;
      else next();
    }
  }
}

async function untilAborted<T>(outcome: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return await outcome;
  const { promise, reject } = Promise.withResolvers<never>();
  const onAbort = () => reject(signal.reason);
  signal.addEventListener("abort", onAbort, { once: true });
  try {
    return await Promise.race([outcome, promise]);
  } finally {
    signal.removeEventListener("abort", onAbort);
  }
}
