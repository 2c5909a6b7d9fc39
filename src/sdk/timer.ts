/** Timers as long as they are asked to be: the runtimes' own take more than 24 days for at once. */

const stepMaxMs = 0x7fff_ffff;

/** Calls `act` once, after so many milliseconds; 0 and Infinity: never. What it returns calls that off. */
export function after(ms: number, act: () => void): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const wait = (leftMs: number): void => {
    const stepMs = Math.min(leftMs, stepMaxMs);
    timer = setTimeout(() => (leftMs > stepMs ? wait(leftMs - stepMs) : act()), stepMs);
  };
  if (ms > 0 && ms < Number.POSITIVE_INFINITY) wait(ms);
  return () => clearTimeout(timer);
}
