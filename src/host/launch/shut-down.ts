/** The stop of a guest whose disk is kept. */
import { withDeadline } from "../deadline.ts";
import type { LiveGuest } from "../guest.ts";

export const stopGraceMs = 10_000;
/** The agent's own SIGTERM and SIGKILL after the grace: part of it. */
const killMs = 500;
/** How long the guest may take after the grace to write its disk's cache out. */
const syncMs = 20_000;

/**
 * Ends the guest's programs, SIGTERM first, and powers it off. A guest that does neither in time, or does not answer, is left as it is:
 * its disk has what it had written. Never rejects.
 */
export async function shutDown(live: LiveGuest, graceMs: number, signal: AbortSignal): Promise<void> {
  const halt = async () => {
    await live.resumeMonitoring(); // after a reconnect under way
    live.suspendMonitoring();
    await live.agent.halt(Math.max(0, graceMs - killMs));
    await live.vm.ended;
  };
  await withDeadline(graceMs + syncMs, `stopping capsule ${live.id}`, halt(), signal).catch(() => {});
  if (!signal.aborted) await live.settleDisk();
}
