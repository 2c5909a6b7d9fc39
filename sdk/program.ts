#!/usr/bin/env node
/** `capsule` of the SDK's package, for machines without a server: the client's commands only. */
import { runProgram } from "../src/cli/cli.ts";
import { commands } from "../src/cli/commands.ts";

const footer = "Set CAPSULE_URL and CAPSULE_API_KEY. capsule COMMAND --help says more, with examples.";
process.exit(await runProgram({ commands, footer }, process.argv.slice(2)));
