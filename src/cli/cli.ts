/** The client's commands: from a command line to an exit code. */
import { type Call, parse, UsageError } from "./command.ts";
import { commands } from "./commands.ts";
import { exitCodes, report } from "./failures.ts";
import { helpOf } from "./help.ts";
import { note, print } from "./screen.ts";
import { connect, serviceUrl } from "./service.ts";

/** Those that end with the exit code of what they ran. */
const runners = new Set(["exec", "shell", "logs"]);

export function isCommand(name: string): boolean {
  return Object.hasOwn(commands, name);
}

export async function runCli(name: string, argv: string[]): Promise<number> {
  const code = await run(name, argv);
  await print("", process.stderr).catch(() => {}); // what was noted there leaves before the process does
  return code;
}

async function run(name: string, argv: string[]): Promise<number> {
  const command = commands[name]!;
  endQuietlyWithoutReader();
  let isJson = argv.includes("--json");
  try {
    const { wantsHelp, ...parsed } = parse(command, argv);
    isJson = parsed.isJson;
    if (wantsHelp) {
      await print(`${helpOf(name, command)}\n`);
      return exitCodes.done;
    }
    const call: Call = { ...parsed, client: connect };
    return await (await command.load())(call);
  } catch (error) {
    if (error instanceof UsageError) {
      report(name, error, { isJson, url: serviceUrl() });
      if (isJson) return exitCodes.usage;
      note(`Usage: capsule ${name} ${command.usage}`.trimEnd());
      note(`  capsule ${name} --help says more.`);
      return exitCodes.usage;
    }
    report(name, error, { isJson, url: serviceUrl() });
    return runners.has(name) ? exitCodes.notRun : exitCodes.failed;
  }
}

/** As in `capsule ls | head -1`: who has read enough hangs up, and that is no error. */
function endQuietlyWithoutReader(): void {
  process.stderr.on("error", () => {}); // nobody is left to be told
  process.stdout.on("error", (error: NodeJS.ErrnoException) => {
    if (error.code !== "EPIPE") throw error;
    process.exit(exitCodes.done);
  });
}
