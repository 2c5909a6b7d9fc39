/** Progress of a copy: one line on the terminal, redrawn every 100 ms, so that a stalled copy shows a falling speed. */
import { printable, sized } from "./screen.ts";

const redrawMs = 100;
const barWidth = 24;

/** The numbers of files, links and folders that were copied. */
export interface Tally {
  files: number;
  links: number;
  directories: number;
}

export class Progress {
  readonly #stream: NodeJS.WriteStream;
  readonly #isShown: boolean;
  readonly #startedMs = performance.now();
  #redraw: ReturnType<typeof setInterval> | undefined;
  #name = "";
  #doneBytes = 0;
  /** 0: unknown. */
  #totalBytes = 0;

  constructor(isShown: boolean, stream: NodeJS.WriteStream = process.stderr) {
    this.#isShown = isShown && stream.isTTY === true;
    this.#stream = stream;
  }

  get doneBytes(): number {
    return this.#doneBytes;
  }

  expects(bytes: number): void {
    this.#totalBytes += bytes;
  }

  begins(name: string): void {
    this.#name = name;
  }

  moved(bytes: number): void {
    this.#doneBytes += bytes;
    if (!this.#isShown || this.#redraw !== undefined) return;
    this.#draw();
    this.#redraw = setInterval(() => this.#draw(), redrawMs).unref();
  }

  /** Erases the line. */
  ends(): void {
    if (this.#redraw === undefined) return;
    clearInterval(this.#redraw);
    this.#stream.write("\r\x1b[K");
  }

  /** The same chunks, counted as they pass. */
  async *counted(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
    for await (const chunk of chunks) {
      yield chunk;
      this.moved(chunk.length);
    }
  }

  #draw(): void {
    const seconds = Math.max(0.001, (performance.now() - this.#startedMs) / 1_000);
    const speed = `${sized(this.#doneBytes / seconds)}/s`;
    const part = this.#totalBytes === 0 ? 0 : Math.min(1, this.#doneBytes / this.#totalBytes);
    const filled = Math.round(part * barWidth);
    const bar =
      this.#totalBytes === 0
        ? sized(this.#doneBytes)
        : `[${"#".repeat(filled)}${" ".repeat(barWidth - filled)}] ${String(Math.floor(part * 100)).padStart(3)} %`;
    const line = `${bar}  ${speed}  ${printable(this.#name)}`;
    this.#stream.write(`\r\x1b[K${line.slice(0, Math.max(20, this.#stream.columns - 1))}`);
  }
}
