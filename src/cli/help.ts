/** The text of --help; docs/CLI.md holds the same. Lines are at most 80 columns wide. */
import { type Command, type Commands, type Option, optionsOf } from "./command.ts";

const widthMax = 80;

/** One line for each command; those that work on this machine's data folder come last, under a heading. */
export function overview(commands: Commands): string {
  const entries = Object.entries(commands);
  const local = entries.filter(([, { isLocal }]) => isLocal);
  const remote = entries.filter(([, { isLocal }]) => !isLocal);
  const parts = remote.length === 0 ? [] : [listing(remote)];
  if (local.length > 0) parts.push("On the server's own machine:", listing(local));
  return parts.join("\n\n");
}

function listing(entries: [string, Command][]): string {
  const width = Math.max(...entries.map(([name]) => name.length));
  return entries.map(([name, { meaning }]) => beside(`  capsule ${name.padEnd(width)}  `, meaning)).join("\n");
}

export function helpOf(name: string, command: Command): string {
  const options = Object.entries(optionsOf(command));
  const width = Math.max(...options.map((option) => spelled(...option).length));
  return [
    `${beside(`Usage: capsule ${name} `, command.usage, usageParts)}`.trimEnd(),
    "",
    beside("", sentence(command.meaning)),
    ...(command.details === undefined ? [] : ["", beside("", command.details)]),
    "",
    "Options:",
    ...options.map(([option, what]) => beside(`  ${spelled(option, what).padEnd(width)}  `, what.meaning)),
    "",
    "Examples:",
    ...command.examples.map(([line, meaning]) => `  # ${meaning}\n  ${line}`),
  ].join("\n");
}

/** An option in brackets is not broken over two lines. */
const usageParts = /(?:\[(?:\[[^\]]*\]|[^\]])*\]|\S)+/g;

/** `first`, and right of it the text, wrapped and indented. */
function beside(first: string, text: string, parts = /\S+/g): string {
  const indent = " ".repeat(first.length);
  const lines = [""];
  for (const part of text.match(parts) ?? []) {
    const longer = `${lines.at(-1)} ${part}`.trimStart();
    if (first.length + longer.length <= widthMax) lines[lines.length - 1] = longer;
    else lines.push(part);
  }
  return first + lines.join(`\n${indent}`);
}

function spelled(name: string, { short, value }: Option): string {
  const long = `--${name}${value === undefined ? "" : ` ${value}`}`;
  return short === undefined ? `    ${long}` : `-${short}, ${long}`;
}

function sentence(text: string): string {
  return `${text[0]!.toUpperCase()}${text.slice(1)}.`;
}
