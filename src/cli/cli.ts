/** From a command line to an exit code: the same for the client's commands and the operator's. */

import { nearest } from "../wire/nearest.ts";
import { type Call, type Command, type Commands, nameIn, parse, UsageError } from "./command.ts";
import { exitCodes, report } from "./failures.ts";
import { helpOf, overview } from "./help.ts";
import { note, print } from "./screen.ts";
import { connect, serviceUrl } from "./service.ts";

export interface Program {
  commands: Commands;
  /** The last lines of the overview. */
  footer: string;
  version: () => Promise<string>;
}

export async function runProgram(program: Program, argv: string[]): Promise<number> {
  const code = await dispatch(program, argv);
  await print("", process.stderr).catch(() => {}); // flushes stderr: the process exits next
  return code;
}

async function dispatch(program: Program, argv: string[]): Promise<number> {
  const [first = "", ...others] = argv;
  if (first === "--version" || first === "-v") {
    await print(`${await program.version()}\n`);
    return exitCodes.done;
  }
  if (["help", "--help", "-h"].includes(first)) return help(program, others);
  const name = nameIn(program.commands, argv);
  if (name !== undefined) return run(name, program, argv.slice(name.split(" ").length));
  const group = groupIn(program.commands, argv);
  const [next] = argv.slice(group.length);
  if (next === undefined || ["--help", "-h"].includes(next)) return help(program, group, next !== undefined);
  return unknown(program, [...group, next].join(" "));
}

function unknown({ commands }: Program, typed: string): number {
  const meant = meantBy(typed, commands);
  if (typed.startsWith("-")) {
    note(`capsule: the option ${typed} stands before the command; options follow it, as in capsule ls --json`);
    return exitCodes.usage;
  }
  const advice = meant === undefined ? "capsule --help lists them" : `did you mean capsule ${meant}?`;
  note(`capsule: there is no command ${JSON.stringify(typed)}; ${advice}`);
  return exitCodes.usage;
}

/** Names that other programs have for a command. */
const namesElsewhere = new Map(
  Object.entries({ list: "ls", delete: "rm", remove: "rm", destroy: "rm", copy: "cp", ssh: "shell", console: "shell" }),
);

/** The command, or the first words of several, that these words mean; undefined: none is near. */
export function meantBy(typed: string, commands: Commands): string | undefined {
  const named = namesElsewhere.get(typed);
  if (named !== undefined && Object.hasOwn(commands, named)) return named;
  const names = Object.keys(commands).flatMap((name) => {
    const words = name.split(" ");
    return words.map((_, at) => words.slice(0, at + 1).join(" "));
  });
  return nearest(typed, names);
}

/** The words that the line and a command's name have in common, as `admin keys`. */
function groupIn(commands: Commands, argv: string[]): string[] {
  const names = Object.keys(commands).map((name) => name.split(" "));
  const isShared = (length: number) =>
    names.some((words) => argv.slice(0, length).join(" ") === words.slice(0, length).join(" "));
  let length = 0;
  while (length < argv.length && isShared(length + 1)) length++;
  return argv.slice(0, length);
}

/** Prints the help of one command, of the commands whose names begin with these words, or of all. */
async function help(program: Program, words: string[], isAsked = true): Promise<number> {
  const { commands, footer } = program;
  exitWhenReaderIsGone();
  const name = nameIn(commands, words);
  if (name !== undefined) return run(name, program, ["--help"]);
  const group = groupIn(commands, words);
  const next = words[group.length];
  if (next !== undefined && !next.startsWith("-")) return unknown(program, [...group, next].join(" "));
  const isWithin = ([each]: [string, Command]) => each.startsWith(group.join(" "));
  const listed = overview(Object.fromEntries(Object.entries(commands).filter(isWithin)));
  const isAll = group.length === 0;
  await print(isAll ? `Capsules: small virtual machines to run things in.\n\n${listed}\n\n${footer}\n` : `${listed}\n`);
  return isAsked ? exitCodes.done : exitCodes.usage;
}

async function run(name: string, { commands, version }: Program, argv: string[]): Promise<number> {
  const command = commands[name]!;
  if (!command.isLocal && !command.outlivesReader) exitWhenReaderIsGone();
  let isJson = !command.isLocal && argv.includes("--json");
  try {
    const { wantsHelp, ...parsed } = parse(command, argv);
    isJson = parsed.isJson;
    if (wantsHelp) {
      const appendix = await command.appendix?.();
      await print(`${helpOf(name, command)}\n${appendix === undefined ? "" : `\n${appendix}\n`}`);
      return exitCodes.done;
    }
    const call: Call = { ...parsed, client: connect, commands, version };
    return await (await command.load())(call);
  } catch (error) {
    report(name, error, { isJson, url: serviceUrl() });
    if (!(error instanceof UsageError)) return command.passesExitCode ? exitCodes.notRun : exitCodes.failed;
    if (isJson) return exitCodes.usage;
    note(`Usage: capsule ${name} ${command.usage}`.trimEnd());
    note(`  capsule ${name} --help says more.`);
    return exitCodes.usage;
  }
}

/** As in `capsule ls | head -1`: a closed stdout is no error. */
function exitWhenReaderIsGone(): void {
  process.stderr.on("error", () => {}); // there is nowhere left to write
  process.stdout.on("error", (error: NodeJS.ErrnoException) => {
    if (error.code !== "EPIPE") throw error;
    process.exit(exitCodes.done);
  });
}
