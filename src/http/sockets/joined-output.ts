/**
 * Output on its way to a client. While the client keeps up, every chunk is a message; while it does not, chunks are
 * joined: what waits costs its bytes, however small the pieces are in which a process prints them.
 */
import { GrowingBytes } from "../../agent/growing-bytes.ts";
import type { SocketLine } from "./connection.ts";

export class JoinedOutput<Channel extends string> {
  readonly #line: SocketLine;
  readonly #send: (channel: Channel, bytes: Buffer) => void;
  readonly #waiting = new Map<Channel, GrowingBytes>();

  /** `send` must not keep the bytes. Flow control bounds what waits: at most a window. */
  constructor(line: SocketLine, send: (channel: Channel, bytes: Buffer) => void) {
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
      waiting = new GrowingBytes();
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
