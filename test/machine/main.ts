/**
 * `./dev machine`: one machine of the repository's, kept in <data>/machine/one until it is told to go down.
 * The exit code of `run` is the command's.
 */
import { join, resolve } from "node:path";
import { Machine } from "./machine.ts";
import { parseShape, shapeHelp } from "./shape.ts";

const help = `./dev machine up [FLAG…]   build what is missing, start the machine, wait until it takes commands
./dev machine run CMD…     run a command in it, in the working tree; the exit code is the command's
./dev machine shell        a shell in it
./dev machine down         power it off and remove its disks

Flags of up:
${shapeHelp}`;

const dataDir = resolve(process.env.CAPSULE_DATA || join(import.meta.dirname, "../../.capsule"));
const machines = join(dataDir, "machine");
const folder = join(machines, "one");

async function running(): Promise<Machine> {
  const machine = await Machine.open(folder);
  if (machine === undefined || !machine.isRunning) throw new Error("no machine is up; run: ./dev machine up");
  return machine;
}

async function up(flags: string[]): Promise<number> {
  const shape = parseShape(flags);
  const there = await Machine.open(folder);
  if (there?.isRunning) throw new Error("a machine is up already; run: ./dev machine down");
  const progress = (step: string) => console.error(`${step} …`);
  const machine = await Machine.create({ machines, folder, shape, sources: { dataDir }, progress });
  console.error(`The machine is up. Its service, once installed, is at ${machine.url}`);
  return 0;
}

/** One argument is a shell command as it stands; several are a command's words. */
async function run(words: string[]): Promise<number> {
  if (words.length === 0) throw new Error("run takes a command");
  const command = words.length === 1 ? words[0]! : words.map(quoted).join(" ");
  return (await (await running()).run(command, { isInteractive: true })).code;
}

function quoted(word: string): string {
  return `'${word.replaceAll("'", "'\\''")}'`;
}

async function main([command = "help", ...rest]: string[]): Promise<number> {
  switch (command) {
    case "up":
      return up(rest);
    case "run":
      return run(rest);
    case "shell":
      return (await (await running()).run("", { isInteractive: true })).code;
    case "down": {
      const machine = await Machine.open(folder);
      await machine?.powerOff().catch((error: Error) => console.error(`machine: ${error.message}; its power is cut`));
      await machine?.remove();
      return 0;
    }
    default:
      console.log(help);
      return command === "help" ? 0 : 2;
  }
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  console.error(`machine: ${error instanceof Error ? error.message : String(error)}`);
  process.exitCode = 1;
}
