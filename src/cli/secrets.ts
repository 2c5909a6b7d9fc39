/** Secrets that a command is told: typed on the terminal without an echo, or read from standard input. They stand on no command line. */
import { Failure } from "./failures.ts";
import { note, print } from "./screen.ts";

const [interrupt, endOfInput, backspace] = ["\x03", "\x04", "\x7f"];
const lineMaxBytes = 4_096;

/** Asks on the terminal, which must be standard input; otherwise reads its first line, which may be missing. */
export async function secretLine(prompt: string): Promise<string> {
  const { stdin } = process;
  if (!stdin.isTTY) return await firstLine(stdin);
  await print(`${prompt}: `, process.stderr);
  stdin.setRawMode(true);
  try {
    return await typedLine(stdin);
  } finally {
    stdin.setRawMode(false);
    stdin.pause();
    note("");
  }
}

async function typedLine(input: NodeJS.ReadStream): Promise<string> {
  let line = "";
  for await (const part of input.setEncoding("utf8")) {
    for (const character of String(part)) {
      if (character === interrupt) throw new Failure("interrupted");
      if (["\r", "\n", endOfInput].includes(character)) return line.trim();
      line = character === backspace ? line.slice(0, -1) : line + character;
    }
  }
  return line.trim();
}

async function firstLine(input: NodeJS.ReadStream): Promise<string> {
  let text = "";
  for await (const part of input.setEncoding("utf8")) {
    text += String(part);
    if (text.includes("\n")) break;
    if (text.length > lineMaxBytes) throw new Failure("the line on standard input is too long");
  }
  return text.split("\n", 1)[0]!.replace(/\r$/, "");
}
