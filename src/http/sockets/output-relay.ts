/**
 * Relays a process's output to a WebSocket. The guest gets credit for a chunk only when the operating system has it, so a
 * slow client slows the process down, and the server neither drops output nor buffers more than one window of it.
 */
import type { Exit, OutputSink, RunningStream, Started } from "../../agent/agent.ts";
import { ChunkBuffer } from "../../agent/chunk-buffer.ts";
import type { OutputSocketQuery } from "../../wire/credentials.ts";
import { closeCodes } from "../../wire/errors.ts";
import type { AttachServerMessage, ExecServerMessage } from "../../wire/exec.ts";
import type { Connection } from "./connection.ts";
import { OrderedOutput } from "./ordered-output.ts";

type OutputEncoding = "utf-8" | "base64";
type OutputOptions = Pick<OutputSocketQuery, "encoding" | "offsets">;
type Channel = "stdout" | "stderr";

/** For the exec and attach sockets. */
export class OutputRelay implements OutputSink {
  readonly #connection: Connection;
  readonly #output: SocketOutput;
  /** The first byte that the client asked for; the position of the guest's output is announced against it. */
  readonly #asked: number | "now";
  #stream: RunningStream | undefined;
  #tellsTag = false;
  #onExit: (exitCode: number) => void = () => {};

  constructor(connection: Connection, { encoding = "utf-8", offsets }: OutputOptions, asked: number | "now" = "now") {
    this.#connection = connection;
    this.#asked = asked;
    const send: SendOutput = (message, bytes) => {
      const consume = () => {
        if (bytes > 0) this.#stream?.consumed(bytes);
      };
      if (message.data === "") consume();
      else this.#send(message, consume);
    };
    this.#output = offsets === "1" ? new OffsetOutput(connection, send) : new EncodedOutput(connection, encoding, send);
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

  /** The start message carries the tag. */
  tellTag(): void {
    this.#tellsTag = true;
  }

  onExit(listener: (exitCode: number) => void): void {
    this.#onExit = listener;
  }

  started({ pid, tag }: Started): void {
    this.#send({ type: "start", pid, ...(this.#tellsTag && { tag }) });
  }

  positioned(offset: number): void {
    if (this.#asked !== "now" && offset > this.#asked) {
      this.#send({ type: "dropped", bytes: offset - this.#asked });
    }
    this.#output.positioned(offset);
  }

  output(channel: Channel | "pty", chunk: Uint8Array): void {
    if (channel !== "pty") this.#output.add(channel, chunk);
  }

  exited({ exitCode }: Exit): void {
    this.#onExit(exitCode);
    this.#output.end(() => {
      // Closes when it is written: a slow client may need longer to read it than a close waits.
      const close = () => this.#connection.close(closeCodes.done, "the process ended");
      this.#send({ type: "exit", exit_code: exitCode }, close);
    });
  }

  failed(error: Error): void {
    this.#connection.failWith(error);
  }

  #send(message: AttachServerMessage | ExecServerMessage, onWritten?: () => void): void {
    this.#connection.send(message, onWritten);
  }
}

type OutputMessage = { type: Channel; data: string; offset?: number };
/** `bytes`: of the process's output. */
type SendOutput = (message: OutputMessage, bytes: number) => void;

interface SocketOutput {
  positioned(offset: number): void;
  /** Copies the chunk if it has to wait. */
  add(channel: Channel, chunk: Uint8Array): void;
  /** Calls back when all is sent. */
  end(then: () => void): void;
}

class EncodedOutput implements SocketOutput {
  readonly #send: SendOutput;
  readonly #encoders: Record<Channel, ChunkEncoder>;
  readonly #joined: JoinedOutput<Channel>;

  constructor(connection: Connection, encoding: OutputEncoding, send: SendOutput) {
    this.#send = send;
    this.#encoders = { stdout: new ChunkEncoder(encoding), stderr: new ChunkEncoder(encoding) };
    this.#joined = new JoinedOutput(connection, (type, bytes) => {
      send({ type, data: this.#encoders[type].encode(bytes) }, bytes.length);
    });
  }

  positioned(): void {}

  add(channel: Channel, chunk: Uint8Array): void {
    this.#joined.add(channel, chunk);
  }

  end(then: () => void): void {
    this.#joined.flush();
    for (const type of ["stdout", "stderr"] as const) this.#send({ type, data: this.#encoders[type].rest() }, 0);
    then();
  }
}

class OffsetOutput implements SocketOutput {
  readonly #ordered: OrderedOutput;
  #offset = 0;

  constructor(connection: Connection, send: SendOutput) {
    this.#ordered = new OrderedOutput(connection, (type, bytes) => {
      send({ type, data: bytes.toString("base64"), offset: this.#offset }, bytes.length);
      this.#offset += bytes.length;
    });
  }

  positioned(offset: number): void {
    this.#offset = offset;
  }

  add(channel: Channel, chunk: Uint8Array): void {
    this.#ordered.add(channel, chunk);
  }

  end(then: () => void): void {
    this.#ordered.end(then);
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
