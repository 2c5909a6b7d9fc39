/**
 * Sends output in the order of its arrival, of both streams. While the socket does not take it, waiting output costs its
 * bytes and 8 more for each piece of one stream; flow control bounds it to one window.
 */
import { ChunkBuffer } from "../../agent/chunk-buffer.ts";
import type { Connection } from "./connection.ts";

type Channel = "stdout" | "stderr";

export class OrderedOutput {
  readonly #connection: Pick<Connection, "isBehind" | "onceDrained">;
  readonly #send: (channel: Channel, bytes: Buffer) => void;
  readonly #waiting = new ChunkBuffer();
  /** Lengths of the waiting pieces; those of standard error negative. */
  #waitingRuns: number[] = [];
  /** Bytes that waited and are being sent, with their pieces in reverse. */
  #sending: Buffer = Buffer.alloc(0);
  #sendingRuns: number[] = [];
  #onSent: (() => void) | undefined;

  /** `send` must not keep the bytes. */
  constructor(
    connection: Pick<Connection, "isBehind" | "onceDrained">,
    send: (channel: Channel, bytes: Buffer) => void,
  ) {
    this.#connection = connection;
    this.#send = send;
  }

  /** Copies the chunk if it has to wait. */
  add(channel: Channel, chunk: Uint8Array): void {
    if (!this.#isWaiting && !this.#connection.isBehind) {
      this.#send(channel, Buffer.from(chunk.buffer, chunk.byteOffset, chunk.length));
      return;
    }
    if (!this.#isWaiting) this.#awaitRoom();
    this.#waiting.add(chunk);
    const [length, last] = [channel === "stdout" ? chunk.length : -chunk.length, this.#waitingRuns.at(-1)];
    if (last !== undefined && last > 0 === length > 0) this.#waitingRuns[this.#waitingRuns.length - 1] = last + length;
    else this.#waitingRuns.push(length);
  }

  /** Calls back when everything is sent. */
  end(then: () => void): void {
    this.#onSent = then;
    if (!this.#isWaiting) then();
  }

  get #isWaiting(): boolean {
    return this.#waitingRuns.length > 0 || this.#sendingRuns.length > 0;
  }

  #awaitRoom(): void {
    this.#connection.onceDrained(() => this.#sendWaiting());
  }

  /** Until the socket takes no more. */
  #sendWaiting(): void {
    while (this.#isWaiting) {
      if (this.#connection.isBehind) {
        this.#awaitRoom();
        return;
      }
      const run = this.#nextRun();
      const length = Math.abs(run);
      const bytes = this.#sending.subarray(0, length);
      this.#sending = this.#sending.subarray(length);
      this.#send(run > 0 ? "stdout" : "stderr", bytes);
    }
    this.#onSent?.();
  }

  #nextRun(): number {
    if (this.#sendingRuns.length === 0) {
      this.#sending = this.#waiting.take();
      this.#sendingRuns = this.#waitingRuns.reverse();
      this.#waitingRuns = [];
    }
    return this.#sendingRuns.pop() as number;
  }
}
