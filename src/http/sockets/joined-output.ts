/**
 * Output on its way to a client. While the client keeps up, every chunk is a message; while it does not, chunks are
 * joined: what waits costs its bytes, however small the pieces are in which a process prints them.
 */
import { ChunkBuffer } from "../../agent/growing-bytes.ts";
import type { Connection } from "./connection.ts";

export class JoinedOutput<Channel extends string> {
  readonly #line: Connection;
  readonly #send: (channel: Channel, bytes: Buffer) => void;
  readonly #waiting = new Map<Channel, ChunkBuffer>();

  /** `send` must not keep the bytes. Flow control bounds what waits: at most a window. */
  constructor(line: Connection, send: (channel: Channel, bytes: Buffer) => void) {
    this.#line = line;
    this.#send = send;
  }

  /** Copies the chunk if it has to wait. */
  add(channel: Channel, chunk: Uint8Array): void {
    if (this.#waiting.size === 0 && !this.#line.isBehind) {
      this.#send(channel, Buffer.from(chunk.buffer, chunk.byteOffset, chunk.length));
      return;
    }
    if (this.#waiting.size === 0) this.#line.onceCaughtUp(() => this.flush());
    let waiting = this.#waiting.get(channel);
    if (waiting === undefined) {
      waiting = new ChunkBuffer();
      this.#waiting.set(channel, waiting);
    }
    waiting.add(chunk);
  }

  /** Sends what waits. */
  flush(): void {
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const [channel, bytes] of waiting) this.#send(channel, bytes.take());
  }
}
