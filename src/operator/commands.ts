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
  const [name, ...args] = argv;
  if (name === "--version") {
    console.log(version);
    return 0;
  }
  if (name === undefined || name === "help" || name === "--help" || name === "-h") {
    console.log(help());
    return name === undefined ? 2 : 0;
  }
  const command = Object.hasOwn(commands, name) ? commands[name] : undefined;
  if (command === undefined) {
    console.error(`capsule: there is no command ${JSON.stringify(name)}; capsule --help lists them`);
    return 2;
  }
  try {
    return await (await command.load())(args);
  } catch (error) {
    console.error(`capsule ${name}: ${error instanceof Error ? error.message : String(error)}`);
    return 1;
  }
}

export function help(): string {
  const width = Math.max(...Object.values(commands).map((command) => command.usage.length));
  const lines = Object.values(commands).map(
    (command) => `  capsule ${command.usage.padEnd(width)}  ${command.meaning}`,
  );
  return ["Usage:", ...lines, "", "Settings, from the environment (name, default, meaning):", "", configHelp()].join(
    "\n",
  );
}
