/** The program `capsule`: the client's commands, and the operator's. */
import { runProgram } from "./cli/cli.ts";
import { commands } from "./cli/commands.ts";
import { operatorCommands, version } from "./operator/commands.ts";

const program = {
  commands: { ...commands, ...operatorCommands },
  footer: [
    "The server and the key come from CAPSULE_URL and CAPSULE_API_KEY, else from the",
    "data folder (CAPSULE_DATA). capsule COMMAND --help says more, with examples;",
    "capsule serve --help lists the server's settings.",
  ].join("\n"),
  version,
};

// The end of the process closes every open descriptor, among them the lock of the data folder, which must be held until then.
process.exit(await runProgram(program, process.argv.slice(2)));
