/** The agent of a VM that was booted for a measurement, asked by a socket: no server, no HTTP, no records. */
import { join } from "node:path";
import type { Agent } from "../src/agent/agent.ts";
import { connectAgent } from "../src/agent/connection.ts";
import { identityOf } from "../src/host/identity.ts";

const deadlineMs = 120_000;

/** With the agent of the VM in `folder`, which is awake and lets commands run. Nobody else may be connected to it. */
export async function withAgent<T>(folder: string, work: (agent: Agent) => Promise<T>): Promise<T> {
  const agent = await connectAgent(join(folder, "agent.sock"), { deadlineMs });
  try {
    await agent.wake(identityOf("bench"));
    await agent.thaw();
    return await work(agent);
  } finally {
    agent.close();
  }
}

/** What a command prints that ends well. */
export function output(agent: Agent, cmd: string, ...args: string[]): Promise<string> {
  return new Promise((resolve, reject) => {
    let text = "";
    const stream = agent.run(
      { cmd, args },
      {
        output(_channel, chunk) {
          text += Buffer.from(chunk).toString("latin1");
          stream.consumed(chunk.length);
        },
        exited: ({ exitCode }) => (exitCode === 0 ? resolve(text) : reject(new Error(`${cmd} ended with ${exitCode}`))),
        failed: reject,
      },
    );
  });
}
