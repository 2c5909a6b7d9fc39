/**
 * Relays a process's output to a WebSocket. The guest gets credit for a chunk only when the operating system has it, so a
 * slow client slows the process down, and the server neither drops output nor buffers more than one window of it.
 */
import type { Exit, OutputSink, RunningStream, Started } from "../../agent/agent.ts";
import { ChunkBuffer } from "../../agent/chunk-buffer.ts";
import { closeCodes } from "../../wire/errors.ts";
import type { ExecServerMessage } from "../../wire/exec.ts";
import type { Connection } from "./connection.ts";

export type OutputEncoding = "utf-8" | "base64";
type Channel = "stdout" | "stderr";

/** For the exec and attach sockets. */
export class OutputRelay implements OutputSink {
  readonly #connection: Connection;
  readonly #encoders: Record<Channel, ChunkEncoder>;
  readonly #joined: JoinedOutput<Channel>;
  #stream: RunningStream | undefined;

  constructor(connection: Connection, encoding: OutputEncoding) {
    this.#connection = connection;
    this.#encoders = { stdout: new ChunkEncoder(encoding), stderr: new ChunkEncoder(encoding) };
    this.#joined = new JoinedOutput(connection, (channel, bytes) => this.#sendOutput(channel, bytes));
  }

  /** Sets the stream that the output comes from; cancels it if the socket is closed. */
  follow(stream: RunningStream): void {
    this.#stream = stream;
    if (!this.#connection.isOpen) stream.cancel();
  }

  stop(): void {
    this.#stream?.stop();
  }

  drop(): void {
    this.#stream?.cancel();
  }

  started({ pid }: Started): void {
    this.#send({ type: "start", pid });
  }

  output(channel: Channel | "pty", chunk: Uint8Array): void {
    if (channel !== "pty") this.#joined.add(channel, chunk);
  }

  exited({ exitCode }: Exit): void {
    this.#joined.flush();
    for (const type of ["stdout", "stderr"] as const) {
      const data = this.#encoders[type].rest();
      if (data !== "") this.#send({ type, data });
    }
    // Closes when it is written: a slow client may need longer to read it than a close waits.
    const close = () => this.#connection.close(closeCodes.done, "the process ended");
    this.#send({ type: "exit", exit_code: exitCode }, close);
  }

  failed(error: Error): void {
    this.#connection.failWith(error);
  }

  #sendOutput(channel: Channel, bytes: Buffer): void {
    const { length } = bytes;
    const data = this.#encoders[channel].encode(bytes);
    if (data === "") this.#stream?.consumed(length);
    else this.#send({ type: channel, data }, () => this.#stream?.consumed(length));
  }

  #send(message: ExecServerMessage, onWritten?: () => void): void {
    this.#connection.send(message, onWritten);
  }
}

/**
 * Sends chunks at once while the socket accepts bytes. While it does not, joins them, so that waiting output costs its
 * bytes and not an object per chunk.
 */
export class JoinedOutput<Channel extends string> {
  readonly #connection: Connection;
  readonly #send: (channel: Channel, bytes: Buffer) => void;
  readonly #waiting = new Map<Channel, ChunkBuffer>();

  /** `send` must not keep the bytes. Flow control bounds the waiting bytes to one window. */
  constructor(connection: Connection, send: (channel: Channel, bytes: Buffer) => void) {
    this.#connection = connection;
    this.#send = send;
  }

  /** Copies the chunk if it has to wait. */
  add(channel: Channel, chunk: Uint8Array): void {
    if (this.#waiting.size === 0 && !this.#connection.isBehind) {
      this.#send(channel, Buffer.from(chunk.buffer, chunk.byteOffset, chunk.length));
      return;
    }
    if (this.#waiting.size === 0) this.#connection.onceDrained(() => this.flush());
    let waiting = this.#waiting.get(channel);
    if (waiting === undefined) {
      waiting = new ChunkBuffer();
      this.#waiting.set(channel, waiting);
    }
    waiting.add(chunk);
  }

  /** Sends the waiting chunks. */
  flush(): void {
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const [channel, bytes] of waiting) this.#send(channel, bytes.take());
  }
}

/** Encodes one channel's chunks. A UTF-8 character that the end of a chunk cuts in two waits for its rest. */
class ChunkEncoder {
  readonly #decoder: InstanceType<typeof TextDecoder> | undefined;

  constructor(encoding: OutputEncoding) {
    this.#decoder = encoding === "utf-8" ? new TextDecoder("utf-8", { ignoreBOM: true }) : undefined;
  }

  encode(chunk: Buffer): string {
    if (this.#decoder === undefined) return chunk.toString("base64");
    return this.#decoder.decode(chunk, { stream: true });
  }

  rest(): string {
    return this.#decoder?.decode() ?? "";
  }
}
