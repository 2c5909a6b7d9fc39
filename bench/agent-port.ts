/**
 * A command at the port of a VM's agent, without a server: the lower bound for any service on this machine. A service adds
 * HTTP, keys and records.
 */
import { output, withAgent } from "./booted-agent.ts";
import { withBootedVm } from "./cold-boot.ts";
import { CommandTurns } from "./command-turns.ts";
import type { Fixture } from "./fixture.ts";

const turns = 60;

export function commandsAtPort(fixture: Fixture): Promise<CommandTurns> {
  return withBootedVm(fixture, (folder) =>
    withAgent(folder, async (agent) => {
      const taken = await CommandTurns.start((cmd, ...args) => output(agent, cmd, ...args));
      for (let turn = 0; turn < fixture.rounds(turns, 3 * turns); turn++) await taken.take(turn % 2 === 0);
      return taken;
    }),
  );
}
