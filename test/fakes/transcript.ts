/** A sink that keeps everything it hears, and gives the credit back at once unless told otherwise. */
import type { Exit, OutputSink, RunningStream, Started } from "../../src/agent/agent.ts";

export class Transcript implements OutputSink {
  readonly process = Promise.withResolvers<Started>();
  readonly over = Promise.withResolvers<Exit | Error>();
  readonly #chunks = { stdout: [] as Buffer[], stderr: [] as Buffer[], pty: [] as Buffer[] };
  readonly #keepsCredit: boolean;
  #stream: RunningStream | undefined;
  #waiting: { isMet: () => boolean; resolve: () => void }[] = [];
  /** Calls of exited and failed; never more than one. */
  lastWords = 0;

  constructor(options: { keepsCredit?: boolean } = {}) {
    this.#keepsCredit = options.keepsCredit ?? false;
    this.process.promise.catch(() => {});
  }

  /** The stream whose credit is given back. */
  of<T extends RunningStream>(stream: T): T {
    this.#stream = stream;
    return stream;
  }

  text(name: "stdout" | "stderr" | "pty"): string {
    return this.bytes(name).toString();
  }

  get chunks(): Readonly<Record<"stdout" | "stderr" | "pty", readonly Buffer[]>> {
    return this.#chunks;
  }

  bytes(name: "stdout" | "stderr" | "pty"): Buffer {
    return Buffer.concat(this.#chunks[name]);
  }

  /** Resolves when the condition, looked at after every piece of output, is met. */
  async heard(isMet: (transcript: Transcript) => boolean): Promise<void> {
    if (isMet(this)) return;
    const met = new Promise<void>((resolve) => this.#waiting.push({ isMet: () => isMet(this), resolve }));
    const over = this.over.promise.then((last) => {
      if (!isMet(this)) throw last instanceof Error ? last : new Error("the process ended before");
    });
    await Promise.race([met, over]);
  }

  /** How it ended; rejects when it failed. */
  async exit(): Promise<Exit> {
    const last = await this.over.promise;
    if (last instanceof Error) throw last;
    return last;
  }

  started(process: Started): void {
    this.process.resolve(process);
  }

  output(name: "stdout" | "stderr" | "pty", chunk: Uint8Array): void {
    this.#chunks[name].push(Buffer.from(chunk));
    if (!this.#keepsCredit) this.#stream?.consumed(chunk.length);
    this.#waiting = this.#waiting.filter(({ isMet, resolve }) => !isMet() || void resolve());
  }

  exited(exit: Exit): void {
    this.lastWords++;
    this.over.resolve(exit);
  }

  failed(error: Error): void {
    this.lastWords++;
    this.process.reject(error);
    this.over.resolve(error);
  }
}
