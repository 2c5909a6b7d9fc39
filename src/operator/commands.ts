/** The commands of whoever runs the server, each with its line of help. A command resolves with the process's exit code. */
import { configHelp } from "../config.ts";
import { version } from "../version.ts";

interface Command {
  usage: string;
  meaning: string;
  load: () => Promise<(args: string[]) => Promise<number>>;
}

const commands: Record<string, Command> = {
  serve: {
    usage: "serve",
    meaning: "run the service in the foreground",
    load: async () => (await import("./serve.ts")).serve,
  },
  down: {
    usage: "down",
    meaning: "stop the server of this data folder and end all its VMs",
    load: async () => (await import("./down.ts")).down,
  },
  doctor: {
    usage: "doctor",
    meaning: "say what is here and what is missing; boot a capsule and run a command in it",
    load: async () => (await import("./doctor.ts")).doctor,
  },
  backup: {
    usage: "backup FOLDER",
    meaning: "copy the data folder, the server running or not; capsules that are not paused are copied as records only",
    load: async () => (await import("./backup.ts")).backup,
  },
  keys: {
    usage: "keys create --team NAME [--name LABEL] | keys list | keys revoke KEY_ID",
    meaning: "API keys: make one (printed alone on stdout), list, revoke",
    load: async () => (await import("./keys.ts")).keys,
  },
};

export async function runCommand(argv: string[]): Promise<number> {
  process.umask(0o077); // whatever is made from here on is its owner's alone
  const [name, ...args] = argv;
  if (name === "--version") {
    console.log(version);
    return 0;
  }
  const command = name !== undefined && Object.hasOwn(commands, name) ? commands[name] : undefined;
  if (command === undefined) {
    console.error(`capsule: there is no command ${JSON.stringify(name)}; capsule --help lists them`);
    return 2;
  }
  if (args[0] === "--help" || args[0] === "-h") {
    console.log(help());
    return 0;
  }
  try {
    return await (await command.load())(args);
  } catch (error) {
    console.error(`capsule ${name}: ${error instanceof Error ? error.message : String(error)}`);
    return 1;
  }
}

/** One a line. */
export function commandList(): string {
  return Object.values(commands)
    .flatMap(({ usage, meaning }) => [`  capsule ${usage}`, `      ${meaning}`])
    .join("\n");
}

export function help(): string {
  return [
    "Usage:",
    commandList(),
    "",
    "Settings, from the environment (name, default, meaning):",
    "",
    configHelp(),
  ].join("\n");
}
