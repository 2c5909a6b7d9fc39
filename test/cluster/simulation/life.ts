/**
 * One life of a daemon, from its start to its end, with a time of its own: timers of what runs in it fire when the schedule lets its
 * time pass, and never after its end. Its random bytes are the schedule's.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import crypto from "node:crypto";
import { syncBuiltinESMExports } from "node:module";
import timers from "node:timers/promises";
import type { Random } from "../../conformance/random.ts";
import { FakeClock } from "../../fakes/fake-clock.ts";

export const beganMs = Date.now();
const lives = new AsyncLocalStorage<Life>();

export class Life extends FakeClock {
  /** The host's name, and the number of the life. */
  readonly name: string;
  readonly host: string;
  readonly random: Random;
  isOver = false;

  constructor(host: string, number: number, random: Random) {
    super();
    this.step(beganMs - this.now()); // PostgreSQL's clock is the machine's
    this.name = `${host}${number}`;
    this.host = host;
    this.random = random;
  }

  /** The life whose code runs now. */
  static get current(): Life | undefined {
    return lives.getStore();
  }

  run<T>(work: () => T): T {
    return lives.run(this, work);
  }

  override after(ms: number, callback: () => void): () => void {
    let isCancelled = false;
    const cancel = super.after(ms, () => {
      if (!isCancelled && !this.isOver) this.run(callback);
    });
    return () => {
      isCancelled = true;
      cancel();
    };
  }
}

class LifeTimer {
  readonly cancel: () => void;

  constructor(cancel: () => void) {
    this.cancel = cancel;
  }

  ref(): this {
    return this;
  }

  unref(): this {
    return this;
  }
}

/** Until it is disposed of, timers and random bytes of code that runs in a life are the life's. */
export function liveByLives(): Disposable {
  const { setTimeout: set, clearTimeout: clear } = globalThis;
  const { setTimeout: delay } = timers;
  const { randomBytes } = crypto;
  const { random } = Math;
  const inLife = (callback: (...of: unknown[]) => void, ms = 0, ...of: unknown[]) => {
    const life = Life.current;
    return life === undefined ? set(callback, ms, ...of) : new LifeTimer(life.after(ms, () => callback(...of)));
  };
  globalThis.setTimeout = inLife as unknown as typeof setTimeout;
  globalThis.clearTimeout = ((timer: unknown) =>
    timer instanceof LifeTimer ? timer.cancel() : clear(timer as NodeJS.Timeout)) as typeof clearTimeout;
  timers.setTimeout = ((ms?: number, value?: unknown, options?: { signal?: AbortSignal }) => {
    const life = Life.current;
    return life === undefined ? delay(ms, value, options) : delayed(life, ms ?? 0, value, options?.signal);
  }) as typeof delay;
  Math.random = () => Life.current?.random.next() ?? random();
  crypto.randomBytes = ((size: number) => {
    const life = Life.current;
    return life === undefined ? randomBytes(size) : life.random.bytes(size);
  }) as typeof randomBytes;
  syncBuiltinESMExports();
  return {
    [Symbol.dispose]() {
      Object.assign(globalThis, { setTimeout: set, clearTimeout: clear });
      timers.setTimeout = delay;
      crypto.randomBytes = randomBytes;
      Math.random = random;
      syncBuiltinESMExports();
    },
  };
}

async function delayed<T>(life: Life, ms: number, value: T, signal: AbortSignal | undefined): Promise<T> {
  signal?.throwIfAborted();
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const cancel = life.after(ms, resolve);
  signal?.addEventListener("abort", () => {
    cancel();
    reject(signal.reason);
  });
  await promise;
  return value;
}
