/** What a command is: one record that its help, its completion, its page in docs/CLI.md and its parsing come from. */
import { parseArgs } from "node:util";
import type { Client } from "../sdk/sdk.ts";

export interface Option {
  /** What its value is called in the help; none: it is a switch. */
  value?: string;
  short?: string;
  /** May be given more than once. */
  isList?: true;
  meaning: string;
}

export interface Command {
  /** What follows the name. */
  usage: string;
  /** One line. */
  meaning: string;
  /** More sentences. */
  details?: string;
  options: Record<string, Option>;
  /** How many words it takes. */
  words: [least: number, most: number];
  /** It takes somebody else's words, options and all: those after its own first word, or only those after `--`. */
  rest?: "after-word" | "after-dashes";
  /** What its words are, for completion. */
  completes?: "capsule" | "path" | "template" | string[];
  examples: [line: string, meaning: string][];
  load: () => Promise<(call: Call) => Promise<number>>;
}

/** One command line, understood. */
export interface Call {
  words: string[];
  /** After the first word, where the command takes a rest. */
  rest: string[];
  /** The service, by its address and key. Throws with what to do when there is no key. */
  client(options?: { streams?: boolean }): Promise<Client>;
  text(option: string): string | undefined;
  /** Throws a UsageError unless it is a whole number. */
  number(option: string): number | undefined;
  list(option: string): string[];
  isSet(option: string): boolean;
  /** Whether programs are to read the output. */
  isJson: boolean;
}

/** The command line cannot be understood; exit code 2. */
export class UsageError extends Error {
  readonly code = "usage";
}

export const commonOptions: Record<string, Option> = {
  json: { meaning: "print JSON for programs" },
  help: { short: "h", meaning: "say what the command does" },
};

export type Parsed = Omit<Call, "client"> & { wantsHelp: boolean };

/** Throws UsageError. */
export function parse(command: Command, argv: string[]): Parsed {
  const all = { ...command.options, ...commonOptions };
  const options = Object.fromEntries(Object.entries(all).map(([name, option]) => [name, asNodeSays(option)]));
  const end = ownWords(command, argv, options);
  const args = argv.slice(0, end);
  const { values, positionals } = checked(() => parseArgs({ args, options, allowPositionals: true }));
  const rest = argv.slice(end);
  if (rest[0] === "--") rest.shift();
  const wantsHelp = values.help === true;
  const [least, most] = command.words;
  if (!wantsHelp && positionals.length < least) throw new UsageError("an argument is missing");
  if (!wantsHelp && positionals.length > most)
    throw new UsageError(`unexpected argument ${JSON.stringify(positionals[most])}`);
  const text = (name: string) => values[name] as string | undefined;
  return {
    words: positionals,
    rest,
    wantsHelp,
    text,
    number: (name) => numberOf(name, text(name)),
    list: (name) => (values[name] as string[] | undefined) ?? [],
    isSet: (name) => values[name] === true,
    isJson: values.json === true,
  };
}

type NodeOption = { type: "string" | "boolean"; multiple: boolean; short?: string };

function asNodeSays({ value, short, isList }: Option): NodeOption {
  const type = value === undefined ? "boolean" : "string";
  return { type, multiple: isList === true, ...(short === undefined ? {} : { short }) };
}

/** How many of them are the command's own. */
function ownWords(command: Command, args: string[], options: Record<string, NodeOption>): number {
  if (command.rest === undefined) return args.length;
  const { tokens } = parseArgs({ args, options, strict: false, allowPositionals: true, tokens: true });
  const dashes = tokens.find((token) => token.kind === "option-terminator");
  if (command.rest === "after-dashes") return dashes?.index ?? args.length;
  const word = tokens.find((token) => token.kind === "positional");
  return word === undefined ? args.length : word.index + 1;
}

function checked<T>(parsing: () => T): T {
  try {
    return parsing();
  } catch (error) {
    throw new UsageError((error as Error).message.split(". To specify")[0]!);
  }
}

function numberOf(name: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  if (!/^\d{1,12}$/.test(text)) throw new UsageError(`--${name} takes a whole number, not ${JSON.stringify(text)}`);
  return Number(text);
}
