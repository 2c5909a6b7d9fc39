/** The result of one test file, or of the agent's tests. */

/** The last part of a test's output is kept, of this length. */
const outputMaxChars = 256 * 1024;

export interface TimedTest {
  title: string;
  ms: number;
}

export interface Printing {
  /** Each test has a line, not only those that fail. */
  isVerbose: boolean;
  /** Writes output as it comes, instead of keeping it. */
  live?: (text: string) => void;
}

export class Result {
  /** Path of the file, or the name of the tests. */
  readonly source: string;
  readonly group: string;
  readonly beganMs = performance.now();
  endedMs = 0;
  passed = 0;
  /** Titles, with those of the suites around them. */
  readonly failed: string[] = [];
  /** TITLE — REASON of each. */
  readonly skipped: string[] = [];
  readonly timed: TimedTest[] = [];
  /** Failures in full, and what the file wrote. */
  output = "";
  readonly #printing: Printing;

  constructor(source: string, group: string, printing: Printing) {
    this.source = source;
    this.group = group;
    this.#printing = printing;
  }

  get ms(): number {
    return this.endedMs - this.beganMs;
  }

  get count(): number {
    return this.passed + this.failed.length + this.skipped.length;
  }

  write(text: string): void {
    if (this.#printing.live !== undefined) this.#printing.live(text);
    else this.output = (this.output + text).slice(-outputMaxChars);
  }

  pass(title: string, ms: number): void {
    this.passed++;
    if (this.#printing.isVerbose) this.write(`✔ ${title} (${(ms / 1_000).toFixed(1)} s)\n`);
  }

  fail(title: string, reason: string): void {
    this.failed.push(title);
    this.write(`✖ ${title}\n${indented(reason)}\n`);
  }

  skip(title: string, reason: string): void {
    this.skipped.push(reason === "" ? title : `${title} — ${reason}`);
    if (this.#printing.isVerbose) this.write(`﹣ ${this.skipped.at(-1)}\n`);
  }
}

function indented(text: string): string {
  return text.trimEnd().replaceAll(/^(?=.)/gm, "  ");
}
