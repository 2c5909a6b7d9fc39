/** The program: what a person types after `capsule`. Whoever runs the server has the first commands, its users the rest. */
import { setFlagsFromString } from "node:v8";

const [name = "", ...args] = process.argv.slice(2);
/** Of one's own team they are the client's, of all teams the operator's. */
const operatorKeyVerbs = ["create", "list", "revoke"];

// What is left open ends with the process: above all the lock of the data folder, which must not be let go of before.
process.exit(await run());

async function run(): Promise<number> {
  const { isCommand, runCli } = await import("./cli/cli.ts");
  const isOperators = name === "keys" && operatorKeyVerbs.includes(args[0] ?? "");
  if (isCommand(name) && !isOperators) return runCli(name, args);
  if (name === "" || name === "help" || name === "--help" || name === "-h") return help();
  // A streamed file passes through the server in small objects with 64 KiB behind each. In a young generation that has
  // grown, as it does while the program is loaded, hundreds of megabytes of them wait to be collected; kept at its first
  // 2 MB, few.
  if (name === "serve") setFlagsFromString("--semi-space-growth-factor=1");
  const { runCommand } = await import("./operator/commands.ts");
  return runCommand([name, ...args]);
}

async function help(): Promise<number> {
  const topic = name === "help" ? args[0] : undefined;
  const { isCommand, runCli } = await import("./cli/cli.ts");
  if (topic !== undefined && isCommand(topic)) return runCli(topic, ["--help"]);
  const { overview } = await import("./cli/help.ts");
  const { commandList } = await import("./operator/commands.ts");
  console.log(
    [
      "Capsules: small virtual machines to run things in.",
      "",
      overview(),
      "",
      "On the server's own machine:",
      "",
      commandList(),
      "",
      "The server and the key come from CAPSULE_URL and CAPSULE_API_KEY, else from the",
      "data folder (CAPSULE_DATA). capsule COMMAND --help says more, with examples;",
      "capsule serve --help lists the server's settings.",
    ].join("\n"),
  );
  return name === "" ? 2 : 0;
}
