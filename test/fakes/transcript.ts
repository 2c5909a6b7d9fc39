/** A sink that records all calls, and returns credit at once unless `keepsCredit` is set. */
import type { Exit, OutputSink, RunningStream, Started } from "../../src/agent/agent.ts";
import { within } from "../wait-for.ts";

export class Transcript implements OutputSink {
  readonly process = Promise.withResolvers<Started>();
  readonly ended = Promise.withResolvers<Exit | Error>();
  readonly #chunks = { stdout: [] as Buffer[], stderr: [] as Buffer[], pty: [] as Buffer[] };
  readonly #keepsCredit: boolean;
  #stream: RunningStream | undefined;
  #waiting: { isMet: () => boolean; resolve: () => void }[] = [];
  /** Number of calls of exited and failed, which must not exceed one. */
  ends = 0;
  /** The offset of the first byte, where a client asked for kept output. */
  offset: number | undefined;
  /** The stream and the bytes of each chunk, in order. */
  readonly order: [name: "stdout" | "stderr" | "pty", bytes: Buffer][] = [];

  constructor(options: { keepsCredit?: boolean } = {}) {
    this.#keepsCredit = options.keepsCredit ?? false;
    this.process.promise.catch(() => {});
  }

  /** Sets the stream that credit is returned to. */
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

  /** Resolves when the condition, checked after every chunk of output, is met. */
  async until(isMet: (transcript: Transcript) => boolean): Promise<void> {
    if (isMet(this)) return;
    const met = new Promise<void>((resolve) => this.#waiting.push({ isMet: () => isMet(this), resolve }));
    const over = this.ended.promise.then((last) => {
      if (!isMet(this)) throw last instanceof Error ? last : new Error("the process ended before");
    });
    await within(
      () => `${isMet} in ${JSON.stringify(this.text("stdout") + this.text("pty")).slice(-500)}`,
      Promise.race([met, over]),
    );
  }

  /** The exit; rejects when the stream failed. */
  async exit(): Promise<Exit> {
    const last = await within("the process ends", this.ended.promise);
    if (last instanceof Error) throw last;
    return last;
  }

  started(process: Started): void {
    this.process.resolve(process);
  }

  positioned(offset: number): void {
    this.offset = offset;
  }

  output(name: "stdout" | "stderr" | "pty", chunk: Uint8Array): void {
    const bytes = Buffer.from(chunk);
    this.#chunks[name].push(bytes);
    this.order.push([name, bytes]);
    if (!this.#keepsCredit) this.#stream?.consumed(chunk.length);
    this.#waiting = this.#waiting.filter(({ isMet, resolve }) => !isMet() || void resolve());
  }

  exited(exit: Exit): void {
    this.ends++;
    this.ended.resolve(exit);
  }

  failed(error: Error): void {
    this.ends++;
    this.process.reject(error);
    this.ended.resolve(error);
  }
}
