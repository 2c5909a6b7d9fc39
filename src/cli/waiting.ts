/** A line on the terminal about a wait: shown once it has lasted a second, with its seconds, erased at its end. */

const everyMs = 1_000;

export const startingSlowly = "the capsule is starting; the first of a template and size takes longer";

export class Waiting {
  readonly #stream: NodeJS.WriteStream;
  readonly #isShown: boolean;
  #redraw: ReturnType<typeof setInterval> | undefined;
  #isDrawn = false;

  constructor(isShown: boolean, stream: NodeJS.WriteStream = process.stderr) {
    this.#isShown = isShown && stream.isTTY === true;
    this.#stream = stream;
  }

  begins(text: string): void {
    if (!this.#isShown) return;
    let seconds = 0;
    this.#redraw = setInterval(() => {
      seconds++;
      this.#isDrawn = true;
      const line = `${seconds} s: ${text}`;
      this.#stream.write(`\r\x1b[K${line.slice(0, Math.max(20, this.#stream.columns - 1))}`);
    }, everyMs).unref();
  }

  ends(): void {
    clearInterval(this.#redraw);
    if (this.#isDrawn) this.#stream.write("\r\x1b[K");
    this.#isDrawn = false;
  }
}
