/** Live output of a process that was started for this stream, or that this stream is attached to. */
import { closeCodes } from "../wire/errors.ts";
import type { AttachServerMessage, ExecServerMessage } from "../wire/exec.ts";
import { type Bytes, fromBase64, toBase64, utf8 } from "./bytes.ts";
import { refusalWith, ServiceError } from "./errors.ts";
import { endingError, MessageSocket } from "./message-socket.ts";
import type { CallOptions, Transport } from "./transport.ts";

export interface OutputChunk {
  channel: "stdout" | "stderr";
  /** The bytes that the process wrote. */
  bytes: Bytes;
  /** The same as text; an incomplete character is held back until the next chunk. At the end it becomes U+FFFD, without bytes. */
  text: string;
}

type OutputMessage = Extract<AttachServerMessage, { type: "stdout" | "stderr" }>;
type Outgoing =
  | {
      type: "start";
      cmd: string;
      args: string[];
      envs?: Record<string, string>;
      cwd?: string;
      stdin?: boolean;
      survive?: boolean;
    }
  | { type: "stdin"; data: string; encoding: "base64" }
  | { type: "stdin_end" }
  | { type: "stop" };
type Socket = MessageSocket<AttachServerMessage | ExecServerMessage, Outgoing>;

/** As base64 below 64 KiB: after a longer message the service handles none of its team for some milliseconds (ADR 39). */
const inputChunkBytes = 48_000;

/** How a stream is opened. */
interface Opening {
  /** The first message to send, if any. */
  begin?: Outgoing;
  /** Makes the error when the process cannot be started or found, of the service's text and code. */
  refusal: (said: string, code: string | undefined) => Error;
  /** Where the output of a process begins that the stream is attached to. */
  from?: "start" | "now" | number;
  /** The command lives on when the stream is closed. */
  survive?: boolean;
  /** Kills the command by another request. */
  kill?: (pid: number) => Promise<void>;
}

/**
 * Iterate it once, or call `wait()`. Leaving the loop early closes the stream: a command started for it is killed, unless it was
 * started with `survive`; an attached process goes on.
 *
 * ```ts
 * for await (const { channel, text } of stream) if (channel === "stdout") show(text);
 * console.log("ended with", stream.exitCode);
 * ```
 */
export class OutputStream implements AsyncIterable<OutputChunk> {
  /** PID inside the capsule. */
  readonly pid: number;
  /** The name of a command that was started with `survive`, as a background process: for `process` of the capsule. */
  readonly tag: string | undefined;
  readonly #socket: Socket;
  readonly #decoders = { stdout: decoder(), stderr: decoder() };
  readonly #signal: AbortSignal | undefined;
  readonly #kill: Opening["kill"];
  readonly #settled: Promise<void>;
  #hasWritten = false;
  /** The service's answer to input that it could not use. */
  #inputRefusal: ServiceError | undefined;
  #settle: () => void = () => {};
  #isRead = false;
  #exitCode: number | undefined;
  #nextOffset: number | undefined;
  #droppedBytes = 0;
  #error: unknown;

  /** @internal */
  static async open(
    transport: Transport,
    path: string,
    { begin, refusal, kill, survive, from = "now" }: Opening,
    options: CallOptions,
  ): Promise<OutputStream> {
    const query: Record<string, string> = {
      ...(from === "now" ? {} : { from: String(from) }),
      ...(from === "now" && survive !== true ? { encoding: "base64" } : { offsets: "1" }),
    };
    const socket: Socket = await MessageSocket.open(transport, path, query, options);
    if (begin !== undefined) socket.send(begin);
    const stop = () => socket.close();
    options.signal?.addEventListener("abort", stop, { once: true });
    const first = await socket.next();
    options.signal?.removeEventListener("abort", stop);
    if (options.signal?.aborted) throw options.signal.reason;
    if (first?.type === "start") return new OutputStream(socket, first, kill, options.signal);
    await socket.next();
    const error = first?.type === "error" ? first : undefined;
    if (error !== undefined && socket.ending?.code === closeCodes.done) throw refusal(error.data, error.code);
    const said = error?.data;
    throw endingError(socket.ending, said, "agent_error");
  }

  private constructor(
    socket: Socket,
    { pid, tag }: { pid: number; tag?: string },
    kill: Opening["kill"],
    signal: AbortSignal | undefined,
  ) {
    this.#socket = socket;
    this.pid = pid;
    this.tag = tag;
    this.#kill = kill;
    this.#signal = signal;
    this.#settled = new Promise((resolve) => {
      this.#settle = resolve;
    });
  }

  /** Undefined until the process has ended and its output is read. 128 + n: killed by signal n. */
  get exitCode(): number | undefined {
    return this.#exitCode;
  }

  /**
   * The offset to attach from again after the last piece that was read; it counts the bytes of both streams. Undefined before the
   * first piece, and without `from` in `attach` or `survive` in `stream`.
   */
  get nextOffset(): number | undefined {
    return this.#nextOffset;
  }

  /** Output between `from` and the first kept byte, of both streams. It is known when the first piece has been read. */
  get droppedBytes(): number {
    return this.#droppedBytes;
  }

  /** The process has ended, or its end cannot be known any more. */
  get hasEnded(): boolean {
    return this.#exitCode !== undefined || this.#socket.ending !== undefined;
  }

  /** The exit code. Output that is not being iterated is discarded. */
  async wait(): Promise<number> {
    if (!this.#isRead) for await (const _ of this);
    await this.#settled;
    if (this.#exitCode === undefined) throw this.#error;
    return this.#exitCode;
  }

  /**
   * Sends standard input: of a command that was started with `stdin: true`, or of a background process that was. Resolves when
   * most of it is sent, which waits for the program to read. After the end of the process, input is thrown away. Throws the
   * service's answer to earlier input that it could not use, if that was read.
   */
  async write(data: string | Uint8Array): Promise<void> {
    const bytes = typeof data === "string" ? utf8(data) : data;
    for (let at = 0; at < bytes.length; at += inputChunkBytes) {
      if (this.#inputRefusal !== undefined) throw this.#inputRefusal;
      this.#hasWritten = true;
      const data = toBase64(bytes.subarray(at, at + inputChunkBytes));
      this.#socket.send({ type: "stdin", data, encoding: "base64" });
      await this.#socket.drained();
    }
  }

  /** Ends standard input, after all that was written. */
  endStdin(): void {
    this.#socket.send({ type: "stdin_end" });
  }

  /** Kills the command that was started for this stream, with its children. Remaining output can still be read. */
  stop(): void {
    const ask = () => this.#socket.send({ type: "stop" });
    // A message behind input that the program does not read is not read either.
    if (this.#hasWritten && this.#kill !== undefined) this.#kill(this.pid).catch(ask);
    else ask();
  }

  /** Closes the stream at once, as leaving the loop does. */
  close(): void {
    this.#socket.close();
    this.#finish(new Error("the stream was closed before the process ended"));
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<OutputChunk, void, undefined> {
    if (this.#isRead) throw new TypeError("an output stream can be read only once");
    this.#isRead = true;
    const stop = () => this.#socket.close();
    this.#signal?.addEventListener("abort", stop, { once: true });
    if (this.#signal?.aborted) stop();
    try {
      yield* this.#chunks();
    } catch (error) {
      this.#finish(error);
      throw error;
    } finally {
      this.#signal?.removeEventListener("abort", stop);
      this.close();
    }
  }

  async *#chunks(): AsyncGenerator<OutputChunk, void, undefined> {
    let said: string | undefined;
    for (let message = await this.#socket.next(); message !== undefined; message = await this.#socket.next()) {
      if (message.type === "stdout" || message.type === "stderr") yield this.#chunk(message);
      else if (message.type === "dropped") this.#droppedBytes = message.bytes;
      else if (message.type === "error") {
        said = message.data;
        this.#inputRefusal = refusalWith(message.code, message.data);
      } else if (message.type === "exit") {
        this.#exitCode = message.exit_code;
        this.#finish();
        yield* this.#heldBack();
        return;
      }
    }
    if (this.#signal?.aborted) throw this.#signal.reason;
    throw endingError(this.#socket.ending, said, "agent_error");
  }

  #chunk({ type: channel, data, offset }: OutputMessage): OutputChunk {
    const bytes = fromBase64(data);
    if (offset !== undefined) this.#nextOffset = offset + bytes.length;
    return { channel, bytes, text: this.#decoders[channel].decode(bytes, { stream: true }) };
  }

  *#heldBack(): Generator<OutputChunk> {
    for (const channel of ["stdout", "stderr"] as const) {
      const text = this.#decoders[channel].decode();
      if (text !== "") yield { channel, bytes: new Uint8Array(), text };
    }
  }

  #finish(error?: unknown): void {
    this.#error ??= error;
    this.#settle();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }
}

function decoder(): InstanceType<typeof TextDecoder> {
  return new TextDecoder("utf-8", { ignoreBOM: true });
}

/** All output of a stream, up to a limit per channel, behind what is `kept` of an earlier one. `onText` is called with it as it comes. */
export async function collect(
  stream: OutputStream,
  maxBytes: number,
  kept: Record<"stdout" | "stderr", Bytes[]> = { stdout: [], stderr: [] },
  onText: Partial<Record<"stdout" | "stderr", ((text: string) => unknown) | undefined>> = {},
): Promise<{ stdout: Bytes[]; stderr: Bytes[]; isTruncated: boolean; exitCode: number }> {
  const roomOf = (parts: Bytes[]) => maxBytes - parts.reduce((sum, { length }) => sum + length, 0);
  const room = { stdout: roomOf(kept.stdout), stderr: roomOf(kept.stderr) };
  let isTruncated = false;
  for await (const { channel, bytes, text } of stream) {
    const part = bytes.subarray(0, room[channel]);
    isTruncated ||= part.length < bytes.length;
    room[channel] -= part.length;
    if (part.length > 0) kept[channel].push(part);
    if (text !== "") await onText[channel]?.(text);
  }
  if (stream.exitCode === undefined) throw new ServiceError("agent_error", "the command's end is not known");
  return { ...kept, isTruncated, exitCode: stream.exitCode };
}
