/** Commands that are run in a guest before any client uses it, so that the client's first commands find caches filled. */
import type { Agent } from "../agent/agent.ts";
import type { LiveGuest } from "./guest.ts";

export type WarmUpCommand = [cmd: string, ...args: string[]];

/** A connection that the gateway alone accepts and closes: the first one after a restore takes 20 times as long as the next. */
const connect = "exec 3<>/dev/tcp/192.0.0.1/9";

export const warmUpCommands: { minimal: readonly WarmUpCommand[]; full: readonly WarmUpCommand[] } = {
  /** The code from a request to an exit, and of a connection, and no more: nothing is kept of them but QEMU's translations. */
  minimal: [["/bin/true"], ["/bin/bash", "-c", connect]],
  /** Also a shell, and an idle CPU: stopping the clock's tick and starting it again is code of its own. */
  full: [["/bin/true"], ["/bin/bash", "-c", `/bin/true; ${connect}; exit`], ["/bin/sleep", "0.02"], ["/bin/true"]],
};

/** Thaws a guest that is awake, runs the commands, and parks it. */
export async function warmUpAndPark(guest: LiveGuest, commands: readonly WarmUpCommand[]): Promise<void> {
  await guest.thaw();
  await runWarmUp(guest.agent, commands);
  await guest.park();
}

/** Runs the commands one after the other, whatever they print and however they exit. Rejects when the agent fails. */
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
