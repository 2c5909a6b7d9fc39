/** Commands of our own in a guest that no client has been in yet, so that what they need is at hand for the client's. */
import type { Agent } from "../../agent/agent.ts";
import type { LiveGuest } from "../guest.ts";

export type WarmUpCommand = [cmd: string, ...args: string[]];

/** The way from request to exit, and no more: whoever has gone it takes no more memory for it than a capsule in use. */
export const minimalWarmUp: readonly WarmUpCommand[] = [["/bin/true"]];

/**
 * Whatever a client runs first finds the way well trodden; and so does a guest that waits a while, as when many are given
 * out at once: stopping the clock's tick and starting it again is code of its own.
 */
export const fullWarmUp: readonly WarmUpCommand[] = [
  ["/bin/true"],
  ["/bin/bash", "-c", "/bin/true; exit"],
  ["/bin/sleep", "0.02"],
  ["/bin/true"],
];

/** Takes a guest that is awake the whole way to its rest, with commands in between. */
export async function warmUpAndPark(guest: LiveGuest, commands: readonly WarmUpCommand[]): Promise<void> {
  await guest.thaw();
  await runWarmUp(guest.agent, commands);
  await guest.park();
}

/** Runs one after the other; what they say and how they end does not matter. Rejects when the agent fails. */
export async function runWarmUp(agent: Agent, commands: readonly WarmUpCommand[]): Promise<void> {
  for (const [cmd, ...args] of commands) await run(agent, cmd, args);
}

function run(agent: Agent, cmd: string, args: string[]): Promise<void> {
  return new Promise((resolve, reject) => {
    const stream = agent.run(
      { cmd, args },
      {
        output: (_channel, chunk) => stream.consumed(chunk.byteLength),
        exited: () => resolve(),
        failed: reject,
      },
    );
  });
}
