/** The program: what a person types after `capsule`. */
import { runCommand } from "./operator/commands.ts";

process.exitCode = await runCommand(process.argv.slice(2));
