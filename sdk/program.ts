#!/usr/bin/env node
/** `capsule` as it comes with the SDK's package, for machines that have no server: the client's commands alone. */
import { isCommand, runCli } from "../src/cli/cli.ts";
import { overview } from "../src/cli/help.ts";

const [name = "", ...args] = process.argv.slice(2);
process.exit(await run());

async function run(): Promise<number> {
  if (isCommand(name)) return runCli(name, args);
  const isAsking = ["", "help", "--help", "-h"].includes(name);
  if (!isAsking) console.error(`capsule: there is no command ${JSON.stringify(name)}; capsule --help lists them`);
  else
    console.log(
      `Capsules: small virtual machines to run things in.\n\n${overview()}\n\nSet CAPSULE_URL and CAPSULE_API_KEY.`,
    );
  return isAsking && name !== "" ? 0 : 2;
}
