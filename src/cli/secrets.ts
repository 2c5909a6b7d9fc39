/** Secrets that a command is told: typed on the terminal without an echo, or read from standard input. They stand on no command line. */
import { Failure } from "./failures.ts";
import { note, print } from "./screen.ts";

const [interrupt, endOfInput, backspace] = ["\x03", "\x04", "\x7f"];
const lineMaxBytes = 4_096;

/** Asks on the terminal, which must be standard input; otherwise reads its first line, which may be missing. */
export async function secretLine(prompt: string): Promise<string> {
  const [line = ""] = await secretLines([prompt]);
  return line;
}

/** Asks for one after the other; otherwise reads the first lines of standard input, in the same order. A missing one is empty. */
export async function secretLines(prompts: readonly string[]): Promise<string[]> {
  const { stdin } = process;
  if (!stdin.isTTY) return await firstLines(stdin, prompts.length);
  stdin.setRawMode(true);
  const characters = charactersOf(stdin);
  try {
    const lines: string[] = [];
    for (const prompt of prompts) {
      await print(`${prompt}: `, process.stderr);
      lines.push(await typedLine(characters));
      note("");
    }
    return lines;
  } finally {
    stdin.setRawMode(false);
    await characters.return(undefined);
    stdin.pause();
  }
}

async function* charactersOf(input: NodeJS.ReadStream): AsyncGenerator<string, undefined> {
  for await (const part of input.setEncoding("utf8")) yield* String(part);
}

async function typedLine(characters: AsyncGenerator<string, undefined>): Promise<string> {
  let line = "";
  for (;;) {
    const { done, value } = await characters.next();
    if (value === interrupt) throw new Failure("interrupted");
    if (done === true || ["\r", "\n", endOfInput].includes(value)) return line.trim();
    line = value === backspace ? line.slice(0, -1) : line + value;
  }
}

async function firstLines(input: NodeJS.ReadStream, count: number): Promise<string[]> {
  let text = "";
  for await (const part of input.setEncoding("utf8")) {
    text += String(part);
    if (text.split("\n", count + 1).length > count) break;
    if (text.length > count * lineMaxBytes) throw new Failure("the line on standard input is too long");
  }
  const lines = text.split("\n", count).map((line) => line.replace(/\r$/, ""));
  return Array.from({ length: count }, (_, index) => lines[index] ?? "");
}
