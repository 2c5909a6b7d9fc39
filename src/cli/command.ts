/** A row of the command table: its parsing, help, completion and section in docs/CLI.md are made of this record. */
import { parseArgs } from "node:util";
import type { Client } from "../sdk/sdk.ts";
import { nearest } from "../wire/nearest.ts";

export interface Option {
  /** Name of its value in the help. Without one the option is a switch. */
  value?: string;
  short?: string;
  /** May be given more than once. */
  isList?: true;
  meaning: string;
}

export interface Command {
  /** The arguments after the name, as help shows them. */
  usage: string;
  /** One line. */
  meaning: string;
  /** More sentences. */
  details?: string;
  options: Record<string, Option>;
  /** How many arguments it takes, options aside. */
  words: [least: number, most: number];
  /** Passes the rest of the line on unparsed: after its first argument, or only after `--`. */
  rest?: "after-word" | "after-dashes";
  /** Exits with the code of the command that it ran; its own failures are 125 instead of 1. */
  passesExitCode?: true;
  /** Has work to do when nobody reads its output any more. */
  outlivesReader?: true;
  /** Works on the data folder of this machine: not in the SDK's package, and without --json. */
  isLocal?: true;
  /** The kind of words that completion offers for its arguments. */
  completes?: "capsule" | "path" | "template" | string[];
  examples: [line: string, meaning: string][];
  /** Printed after the help; for text that is loaded only then. */
  appendix?: () => Promise<string>;
  load: () => Promise<(call: Call) => Promise<number>>;
}

/** Name → command. A name is one word or several: `admin keys create`. */
export type Commands = Record<string, Command>;

/** A parsed command line. */
export interface Call {
  words: string[];
  /** The part that is passed on unparsed. */
  rest: string[];
  /** The service, by its address and key. Throws a Failure with advice when there is no key. */
  client(options?: { streams?: boolean }): Promise<Client>;
  text(option: string): string | undefined;
  /** Throws a UsageError unless it is a whole number. */
  number(option: string): number | undefined;
  /** Throws a UsageError unless it is a size: MiB, or `512M`, `1G`. */
  mebibytes(option: string): number | undefined;
  /** Throws a UsageError unless it is a time: seconds, or `90s`, `5m`, `2h`, `7d`. */
  seconds(option: string): number | undefined;
  list(option: string): string[];
  isSet(option: string): boolean;
  /** Print JSON. */
  isJson: boolean;
  /** The table that the command stands in. */
  commands: Commands;
  /** The program's own version. */
  version(): Promise<string>;
}

/** The command line cannot be understood; exit code 2. */
export class UsageError extends Error {
  readonly code = "usage";
  readonly advice: string | undefined;

  constructor(message: string, advice?: string) {
    super(message);
    this.advice = advice;
  }
}

const json: Option = { meaning: "print JSON for programs" };
const help: Option = { short: "h", meaning: "show this help" };

/** Its own options, and those that every command has. */
export function optionsOf({ options, isLocal }: Command): Record<string, Option> {
  return isLocal ? { ...options, help } : { ...options, json, help };
}

/** The longest name that the line begins with; undefined: there is none. */
export function nameIn(commands: Record<string, unknown>, argv: string[]): string | undefined {
  const names = Object.keys(commands).filter((name) => startsWith(argv, name.split(" ")));
  return names.sort((a, b) => b.length - a.length)[0];
}

function startsWith(argv: string[], words: string[]): boolean {
  return words.every((word, at) => argv[at] === word);
}

export type Parsed = Omit<Call, "client" | "commands" | "version"> & { wantsHelp: boolean };

/** Throws UsageError. */
export function parse(command: Command, argv: string[]): Parsed {
  const options = Object.fromEntries(
    Object.entries(optionsOf(command)).map(([name, option]) => [name, nodeOption(option)]),
  );
  const end = parsedLength(command, argv, options);
  const args = argv.slice(0, end);
  const { values, positionals } = checked(command, () => parseArgs({ args, options, allowPositionals: true }));
  const rest = argv.slice(end);
  if (rest[0] === "--") rest.shift();
  else if (rest[0]?.startsWith("-") && !args.includes("--help"))
    throw new UsageError(
      `options stand before ${wordsOf(command.usage)[0]}, and a command that begins with - after --`,
    );
  const wantsHelp = values.help === true;
  const [least, most] = command.words;
  if (!wantsHelp && positionals.length < least)
    throw new UsageError(`${wordsOf(command.usage)[positionals.length] ?? "an argument"} is missing`);
  if (!wantsHelp && positionals.length > most)
    throw new UsageError(`unexpected argument ${JSON.stringify(positionals[most])}`);
  const text = (name: string) => values[name] as string | undefined;
  return {
    words: positionals,
    rest,
    wantsHelp,
    text,
    number: (name) => numberOf(name, text(name)),
    mebibytes: (name) => mebibytesIn(name, text(name)),
    seconds: (name) => secondsIn(`--${name}`, text(name)),
    list: (name) => (values[name] as string[] | undefined) ?? [],
    isSet: (name) => values[name] === true,
    isJson: values.json === true,
  };
}

/** The arguments that are no options, as the usage names them. */
function wordsOf(usage: string): string[] {
  const [form = ""] = usage.split(" | ");
  return form.replace(/\[(?:\[[^\]]*\]|[^\]])*\]…?/g, "").match(/[^\s…]+/g) ?? [];
}

type NodeOption = { type: "string" | "boolean"; multiple: boolean; short?: string };

function nodeOption({ value, short, isList }: Option): NodeOption {
  const type = value === undefined ? "boolean" : "string";
  return { type, multiple: isList === true, ...(short === undefined ? {} : { short }) };
}

/** How many arguments stand before the part that is passed on unparsed. */
function parsedLength(command: Command, args: string[], options: Record<string, NodeOption>): number {
  if (command.rest === undefined) return args.length;
  const { tokens } = parseArgs({ args, options, strict: false, allowPositionals: true, tokens: true });
  const dashes = tokens.find((token) => token.kind === "option-terminator");
  if (command.rest === "after-dashes") return dashes?.index ?? args.length;
  const word = tokens.find((token) => token.kind === "positional");
  return word === undefined ? args.length : word.index + 1;
}

function checked<T>(command: Command, parsing: () => T): T {
  const options = optionsOf(command);
  try {
    return parsing();
  } catch (error) {
    const message = (error as Error).message.split(". To specify")[0]!;
    const valueless = /--([\w-]+)(?: <value>)?' argument (?:missing|is ambiguous)/.exec(message)?.[1];
    if (valueless !== undefined) throw new UsageError(`--${valueless} takes ${options[valueless]!.value}`);
    const unknown = /^Unknown option '--([^']+)'$/.exec(message)?.[1];
    const meant = unknown === undefined ? undefined : nearest(unknown, Object.keys(options));
    throw new UsageError(meant === undefined ? message : `${message}; did you mean --${meant}?`);
  }
}

const unitsSec: Record<string, number> = { "": 1, s: 1, m: 60, h: 3_600, d: 86_400 };

/** `name`: what takes the time. */
export function secondsIn<Text extends string | undefined>(
  name: string,
  text: Text,
): Text extends string ? number : number | undefined;
export function secondsIn(name: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  const [, digits, unit = ""] = /^(\d{1,12})([smhd]?)$/.exec(text) ?? [];
  if (digits === undefined)
    throw new UsageError(`${name} takes seconds, or a time such as 90s, 5m, 2h or 7d, not ${JSON.stringify(text)}`);
  return Number(digits) * unitsSec[unit]!;
}

function mebibytesIn(name: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  const [, digits, unit = "M"] = /^(\d{1,9})([MG]?)$/.exec(text) ?? [];
  if (digits === undefined)
    throw new UsageError(`--${name} takes MiB, or a size such as 512M or 1G, not ${JSON.stringify(text)}`);
  return Number(digits) * (unit === "G" ? 1_024 : 1);
}

function numberOf(name: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  if (!/^\d{1,12}$/.test(text)) throw new UsageError(`--${name} takes a whole number, not ${JSON.stringify(text)}`);
  return Number(text);
}
