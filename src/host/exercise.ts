/** Commands of our own in a guest that no client has been in yet, so that what they need is at hand for the client's. */
import type { Agent } from "../agent/agent.ts";

export type Exercise = [cmd: string, ...args: string[]];

/** Runs one after the other; what they say and how they end does not matter. Rejects when the agent fails. */
export async function exercise(agent: Agent, commands: readonly Exercise[]): Promise<void> {
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
