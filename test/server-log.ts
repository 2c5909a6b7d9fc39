/** The errors in a server's log, and those that its test causes on purpose. Any other fails the test. */
import { readFile } from "node:fs/promises";

/** pino's level `error`. */
const errorLevel = 50;

export class ServerLog {
  readonly file: string;
  readonly #expected: RegExp[];

  constructor(file: string, expected: readonly RegExp[] = []) {
    this.file = file;
    this.#expected = [...expected];
  }

  /** Announces lines of level error or above, which the test causes. */
  expect(...patterns: RegExp[]): void {
    this.#expected.push(...patterns);
  }

  /** Lines of level error or above that the test has not announced. */
  async unexpected(): Promise<string[]> {
    const lines = (await readFile(this.file, "utf8").catch(orNothing)).split("\n").filter(isError);
    return lines.filter((line) => !this.#expected.some((pattern) => pattern.test(line)));
  }

  /** Throws when there are such lines. */
  async assertExpected(): Promise<void> {
    const lines = await this.unexpected();
    if (lines.length === 0) return;
    const shown = lines.slice(0, 10).map((line) => line.slice(0, 2_000));
    throw new Error(`the server logged ${lines.length} errors that no test announced:\n${shown.join("\n")}`);
  }
}

/** For the file of a server that was never started. */
function orNothing(error: NodeJS.ErrnoException): string {
  if (error.code === "ENOENT") return "";
  throw error;
}

/** A line that was cut by the server's end is none; one that is not the logger's counts. */
function isError(line: string): boolean {
  if (line === "") return false;
  try {
    return (JSON.parse(line) as { level: number }).level >= errorLevel;
  } catch {
    return !line.startsWith('{"level":');
  }
}
