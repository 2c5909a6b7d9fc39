#!/usr/bin/env node
/** `capsule` of the SDK's package, for machines without a server: the client's commands only. */
import { readFileSync } from "node:fs";
import { runProgram } from "../src/cli/cli.ts";
import { commands } from "../src/cli/commands.ts";

/** The version of the package that this file is in. */
const version = async (): Promise<string> =>
  JSON.parse(readFileSync(new URL("./package.json", import.meta.url), "utf8")).version;
const footer =
  "Log in with capsule login URL, or set CAPSULE_URL and CAPSULE_API_KEY. capsule COMMAND --help says more, with examples.";
process.exit(await runProgram({ commands, footer, version }, process.argv.slice(2)));
