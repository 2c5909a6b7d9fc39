/** What --help prints; docs/CLI.md holds the same words. It fits the narrowest terminal that is still common. */
import { type Command, commonOptions, type Option } from "./command.ts";
import { commands } from "./commands.ts";

const widthMax = 80;

/** All commands, one a line. */
export function overview(): string {
  const width = Math.max(...Object.keys(commands).map((name) => name.length));
  return Object.entries(commands)
    .map(([name, { meaning }]) => beside(`  capsule ${name.padEnd(width)}  `, meaning))
    .join("\n");
}

export function helpOf(name: string, command: Command): string {
  const options = Object.entries({ ...command.options, ...commonOptions });
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

/** An option stands on one line with all that belongs to it. */
const usageParts = /(?:\[(?:\[[^\]]*\]|[^\]])*\]|\S)+/g;

/** The text right of the first words, on as many lines as it takes. */
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
