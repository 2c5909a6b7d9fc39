/**
 * What a command costs where there is no server: at the port of a VM's agent, asked by a socket. No service on this machine
 * can answer sooner, whatever it is written in; what it adds is HTTP, keys and records.
 */
import { join } from "node:path";
import type { Agent } from "../src/agent/agent.ts";
import { identityOf } from "../src/host/identity.ts";
import { withBootedVm } from "./cold-boot.ts";
import { connect, type Rig } from "./rig.ts";
import { repeat, summarize, timed } from "./statistics.ts";

const turns = 20;
const deadlineMs = 120_000;

export interface AtPort {
  /** Milliseconds of a command. */
  commands: number[];
  /** By how many milliseconds each turn's p50 lies above that of the spawn inside. */
  above: number[];
}

/** In turns of `perTurn` commands and what `inside`, a program for Python, says of as many spawns. */
export function commandsAtPort(rig: Rig, perTurn: number, inside: string): Promise<AtPort> {
  return withBootedVm(rig, async (folder) => {
    const agent = await connect(join(folder, "agent.sock"), deadlineMs);
    try {
      await agent.wake(identityOf("bench"));
      await agent.thaw();
      const taken: AtPort = { commands: [], above: [] };
      for (let turn = 0; turn < rig.rounds(turns, 3 * turns); turn++) {
        const spawns = JSON.parse(await output(agent, "python3", "-c", inside)) as number[];
        await output(agent, "/bin/true");
        const commands = await repeat(perTurn, () => timed(() => output(agent, "/bin/true")));
        taken.commands.push(...commands);
        taken.above.push(summarize(commands).p50 - summarize(spawns).p50);
      }
      return taken;
    } finally {
      agent.close();
    }
  });
}

/** Of a command that ends well. */
function output(agent: Agent, cmd: string, ...args: string[]): Promise<string> {
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
