/** The program: what a person types after `capsule`. */
import { runCommand } from "./operator/commands.ts";

// What is left open ends with the process: above all the lock of the data folder, which must not be let go of before.
process.exit(await runCommand(process.argv.slice(2)));
