/** What --help prints; docs/CLI.md holds the same words. */
import { type Command, commonOptions, type Option } from "./command.ts";
import { commands } from "./commands.ts";

/** All commands, one a line. */
export function overview(): string {
  const width = Math.max(...Object.keys(commands).map((name) => name.length));
  return Object.entries(commands)
    .map(([name, { meaning }]) => `  capsule ${name.padEnd(width)}  ${meaning}`)
    .join("\n");
}

export function helpOf(name: string, command: Command): string {
  const options = Object.entries({ ...command.options, ...commonOptions });
  const width = Math.max(...options.map((option) => spelled(...option).length));
  const left = Math.max(...command.examples.map(([line]) => line.length));
  return [
    `Usage: capsule ${name} ${command.usage}`.trimEnd(),
    "",
    sentence(command.meaning),
    ...(command.details === undefined ? [] : ["", ...command.details]),
    "",
    "Options:",
    ...options.map(([option, what]) => `  ${spelled(option, what).padEnd(width)}  ${what.meaning}`),
    "",
    "Examples:",
    ...command.examples.map(([line, meaning]) => `  ${line.padEnd(left)}  # ${meaning}`),
  ].join("\n");
}

function spelled(name: string, { short, value }: Option): string {
  const long = `--${name}${value === undefined ? "" : ` ${value}`}`;
  return short === undefined ? `    ${long}` : `-${short}, ${long}`;
}

function sentence(text: string): string {
  return `${text[0]!.toUpperCase()}${text.slice(1)}.`;
}
