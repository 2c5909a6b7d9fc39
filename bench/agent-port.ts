/**
 * What a command costs where there is no server: at the port of a VM's agent, asked by a socket. No service on this machine
 * can answer sooner, whatever it is written in; what it adds is HTTP, keys and records.
 */
import { output, withAgent } from "./booted-agent.ts";
import { withBootedVm } from "./cold-boot.ts";
import { CommandTurns } from "./command-turns.ts";
import type { Rig } from "./rig.ts";

const turns = 60;

export function commandsAtPort(rig: Rig): Promise<CommandTurns> {
  return withBootedVm(rig, (folder) =>
    withAgent(folder, async (agent) => {
      const taken = await CommandTurns.start((cmd, ...args) => output(agent, cmd, ...args));
      for (let turn = 0; turn < rig.rounds(turns, 3 * turns); turn++) await taken.take(turn % 2 === 0);
      return taken;
    }),
  );
}
