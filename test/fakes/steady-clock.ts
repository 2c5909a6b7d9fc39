/** A clock for timers and performance.now that moves only when told to. */
import type { TestContext } from "node:test";

export interface SteadyClock {
  /** Moves the clock, and runs no timer. */
  move: (ms: number) => void;
  /** Moves the clock and runs the timers that are due, and what they resolve. */
  pass: (ms: number) => Promise<void>;
}

export function steadyClock(t: TestContext): SteadyClock {
  t.mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  let nowMs = 1_000;
  t.mock.method(performance, "now", () => nowMs);
  const move = (ms: number) => {
    nowMs += ms;
  };
  const pass = async (ms: number) => {
    move(ms);
    t.mock.timers.tick(ms);
    await new Promise(setImmediate);
  };
  return { move, pass };
}
