/** The client's rows of the command table, in the order of the overview. */
import { capsuleCommands, statusCommands } from "./capsule-commands.ts";
import type { Commands } from "./command.ts";
import { networkCommands } from "./network-commands.ts";
import { processCommands, startCommands } from "./process-commands.ts";
import { serviceCommands } from "./service-commands.ts";

export const commands: Commands = {
  ...capsuleCommands,
  ...startCommands,
  ...networkCommands,
  ...processCommands,
  ...statusCommands,
  ...serviceCommands,
};
