/** A guest's clock beside its host's after a pause, in ms. */
import assert from "node:assert/strict";

const toleranceMs = 50;
const tries = 8;

export interface Clocks {
  host: () => Promise<number>;
  guest: () => Promise<number>;
  /** Pauses and resumes the guest, with a second or more in between. */
  again: () => Promise<unknown>;
}

/**
 * Throws unless the clock was set when the guest was resumed. The host sends the time; on a busy machine the message may be
 * late, so that another resume is looked at. A clock that was not set is behind by the whole pause each time.
 */
export async function assertClockSet({ host, guest, again }: Clocks): Promise<void> {
  const offsMs: number[] = [];
  while (offsMs.length < tries) {
    if (offsMs.length > 0) await again();
    const before = await host();
    const now = await guest();
    offsMs.push(now < before ? now - before : Math.max(0, now - (await host())));
    if (Math.abs(offsMs.at(-1)!) < toleranceMs) return;
  }
  assert.fail(`the guest's clock is off by ${offsMs.join(", ")} ms`);
}
