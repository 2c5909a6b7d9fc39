/** The clock of this room, replaced by a manual one in tests. */
export interface Clock {
  /** Wall clock, epoch milliseconds. */
  now(): number;
  /** Monotonic milliseconds. */
  ticks(): number;
  /** Calls back once after about `ms`, possibly early; the returned function cancels. */
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
