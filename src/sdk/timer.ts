/** Timers of any length: the runtimes' own fire at once beyond 2^31 ms (24 days). */

const stepMaxMs = 0x7fff_ffff;

/** Calls `act` once, after `ms` milliseconds; 0 and Infinity: never. Returns a function that cancels it. */
export function after(ms: number, act: () => void): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const wait = (leftMs: number): void => {
    const stepMs = Math.min(leftMs, stepMaxMs);
    timer = setTimeout(() => (leftMs > stepMs ? wait(leftMs - stepMs) : act()), stepMs);
  };
  if (ms > 0 && ms < Number.POSITIVE_INFINITY) wait(ms);
  return () => clearTimeout(timer);
}
