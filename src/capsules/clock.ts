/** Time, as this room uses it; tests bring their own. */
export interface Clock {
  /** Wall clock, epoch milliseconds. */
  now(): number;
  /** Monotonic milliseconds. */
  ticks(): number;
  /** Calls back once after about `ms`, perhaps early; the returned function takes it back. */
  after(ms: number, callback: () => void): () => void;
}

const longestTimerMs = 0x7fffffff;

export const systemClock: Clock = {
  now: Date.now,
  ticks: () => performance.now(),
  after(ms, callback) {
    const timer = setTimeout(callback, Math.min(Math.ceil(ms), longestTimerMs));
    timer.unref();
    return () => clearTimeout(timer);
  },
};
