/** The agent of a VM booted for a measurement, over its socket: no server, no HTTP, no records. */
import { join } from "node:path";
import type { Agent } from "../src/agent/agent.ts";
import { connectAgent } from "../src/agent/connection.ts";
import { identityOf } from "../src/host/guest.ts";

const deadlineMs = 120_000;

/** Runs `work` with the agent of the VM in `folder`, woken and thawed. It must have no other connection. */
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

/** Resolves with the command's output. Rejects unless it exits with 0. */
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
