/**
 * A terminal session. The session runs in the capsule; this is a connection to it, which is restored automatically when
 * it breaks. The service then sends the output missed in between, up to 256 KiB.
 *
 *   opening ──► live ──► reconnecting ──► live … ──► ended (exit, paused, destroyed, closed here)
 */
import { closeCodes } from "../wire/errors.ts";
import type { PtyClientMessage, PtyServerMessage } from "../wire/pty-messages.ts";
import { type Bytes, fromBase64, toBase64, utf8 } from "./bytes.ts";
import { ConnectionError, refusalWith, ServiceError } from "./errors.ts";
import { endingError, MessageSocket } from "./message-socket.ts";
import { Queue } from "./queue.ts";
import { retryDelayMs, sleep } from "./retry.ts";
import type { Transport } from "./transport.ts";

export interface PtyOptions {
  /** Default: `/bin/bash`. */
  cmd?: string;
  args?: string[];
  /** Default: 80. */
  cols?: number;
  /** Default: 24. */
  rows?: number;
  envs?: Record<string, string>;
  /** Default: the user's home directory. */
  cwd?: string;
  /** Name of a user of the capsule, or a decimal uid. Default: root. */
  user?: string;
  /** Names the session; no live process has it. Default: a generated one. */
  tag?: string;
}

export interface PtyConnection {
  /** Closes the connection; the session goes on. */
  signal?: AbortSignal | undefined;
  /** How long to try to restore a broken connection, milliseconds; 0: not at all. Default: 60 000. */
  reconnectMs?: number | undefined;
  /** Called when the connection is lost, and when it is restored. */
  onState?: ((state: "live" | "reconnecting") => void) | undefined;
}

type Socket = MessageSocket<PtyServerMessage, PtyClientMessage>;
type First = ({ type: "start" } & PtyOptions) | { type: "connect"; tag: string; from?: "start" };

const reconnectMs = 60_000;
/** Limit of unread output; beyond it the socket is paused. */
const aheadMaxBytes = 256 * 1024;
/** Limit of input that is buffered without a connection. */
const keptInputMaxBytes = 1024 * 1024;
const inputChunkBytes = 256 * 1024;

/**
 * Iterate it for the output, `write` the input. Leaving the loop detaches: the session goes on, and
 * `capsule.rejoin(tag)` joins it again.
 */
export class Pty implements AsyncIterable<Bytes> {
  /** Names the session: `capsule.rejoin(tag)`. */
  readonly tag: string;
  /** PID of its program, inside the capsule. */
  readonly pid: number;
  readonly #transport: Transport;
  readonly #path: string;
  readonly #options: PtyConnection;
  readonly #output = new Queue<Bytes>(() => this.#onTaken?.());
  readonly #kept: Bytes[] = [];
  readonly #settled: Promise<void>;
  #settle: () => void = () => {};
  #onTaken: (() => void) | undefined;
  #socket: Socket | undefined;
  #size: { cols: number; rows: number } | undefined;
  #exitCode: number | undefined;
  #error: unknown;
  #isClosed = false;

  /** @internal */
  static async open(transport: Transport, path: string, first: First, options: PtyConnection): Promise<Pty> {
    const { socket, tag, pid } = await join(transport, path, first, options);
    const pty = new Pty(transport, path, { tag, pid }, options);
    pty.#stay(socket);
    return pty;
  }

  private constructor(
    transport: Transport,
    path: string,
    { tag, pid }: { tag: string; pid: number },
    options: PtyConnection,
  ) {
    this.#transport = transport;
    this.#path = path;
    this.tag = tag;
    this.pid = pid;
    this.#options = options;
    this.#settled = new Promise((resolve) => {
      this.#settle = resolve;
    });
    options.signal?.addEventListener("abort", () => this.detach(), { once: true });
  }

  /** Undefined while the program runs. 128 + n: killed by signal n. */
  get exitCode(): number | undefined {
    return this.#exitCode;
  }

  get isLive(): boolean {
    return this.#socket !== undefined;
  }

  /**
   * Sends input. Resolves when it is handed to the connection; without a connection up to 1 MiB is buffered and sent
   * later.
   */
  async write(data: string | Uint8Array): Promise<void> {
    const bytes = typeof data === "string" ? utf8(data) : (data as Bytes);
    for (let at = 0; at < bytes.length; at += inputChunkBytes) {
      const part = bytes.slice(at, at + inputChunkBytes);
      if (this.#socket === undefined) this.#keep(part);
      else this.#socket.send({ type: "input", data: toBase64(part) });
      await this.#socket?.drained();
    }
  }

  resize(cols: number, rows: number): void {
    this.#size = { cols, rows };
    this.#socket?.send({ type: "resize", cols, rows });
  }

  /** Kills the program. While the connection is being made anew it does nothing. */
  kill(): void {
    this.#socket?.send({ type: "kill" });
  }

  /** Closes the connection; the session goes on. */
  detach(): void {
    this.#isClosed = true;
    this.#socket?.close();
    this.#end(this.#options.signal?.aborted ? this.#options.signal.reason : new Error("the terminal was detached"));
  }

  /** The program's exit code. The output must be read meanwhile. Throws when the connection ends before the session. */
  async wait(): Promise<number> {
    await this.#settled;
    if (this.#exitCode === undefined) throw this.#error;
    return this.#exitCode;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Bytes, void, undefined> {
    try {
      for await (const bytes of this.#output) yield bytes;
      if (this.#exitCode === undefined && !this.#isClosed) throw this.#error;
    } finally {
      this.detach();
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.detach();
    return Promise.resolve();
  }

  // ---- The connection

  async #stay(socket: Socket): Promise<void> {
    try {
      for (let current = socket; ; current = await this.#rejoin()) {
        this.#become(current);
        const isOver = await this.#listen(current);
        this.#socket = undefined;
        if (isOver || this.#isClosed) break;
        this.#options.onState?.("reconnecting");
      }
      this.#end();
    } catch (error) {
      this.#socket = undefined;
      this.#end(error);
    }
  }

  #become(socket: Socket): void {
    const isFirst = this.#socket === undefined && this.#size === undefined && this.#kept.length === 0;
    this.#socket = socket;
    if (this.#isClosed) socket.close();
    if (!isFirst && this.#size !== undefined) socket.send({ type: "resize", ...this.#size });
    for (const part of this.#kept.splice(0)) socket.send({ type: "input", data: toBase64(part) });
    this.#options.onState?.("live");
  }

  /** True: the session has ended; false: only the connection. Throws when the session cannot be joined again. */
  async #listen(socket: Socket): Promise<boolean> {
    let said: string | undefined;
    for (let message = await socket.next(); message !== undefined; message = await socket.next()) {
      if (message.type === "output") await this.#show(fromBase64(message.data));
      else if (message.type === "error" && message.fatal) said = message.data;
      else if (message.type === "exit") {
        this.#exitCode = message.exit_code;
        socket.close();
        return true;
      }
    }
    if (this.#isClosed) return true;
    const code = socket.ending?.code;
    const isFinal = code === undefined || finalCodes.has(code) || (code === closeCodes.done && said !== undefined);
    if (isFinal || this.#options.reconnectMs === 0) throw endingError(socket.ending, said, "agent_error");
    return false;
  }

  async #show(bytes: Bytes): Promise<void> {
    this.#output.push(bytes, bytes.length);
    while (this.#output.sizeBytes > aheadMaxBytes && !this.#isClosed) {
      await new Promise<void>((resolve) => {
        this.#onTaken = resolve;
      });
    }
  }

  async #rejoin(): Promise<Socket> {
    const deadline = performance.now() + (this.#options.reconnectMs ?? reconnectMs);
    for (let attempt = 0; ; attempt++) {
      try {
        await sleep(retryDelayMs(unreachable, attempt, "always") ?? 0, this.#options.signal);
        const first = { type: "connect" as const, tag: this.tag };
        return (await join(this.#transport, this.#path, first, this.#options)).socket;
      } catch (error) {
        const mayPass = error instanceof ConnectionError || (error instanceof ServiceError && error.status >= 500);
        if (this.#isClosed || !mayPass || performance.now() > deadline) throw error;
      }
    }
  }

  #keep(part: Bytes): void {
    if (this.#isClosed || this.#exitCode !== undefined) return;
    const keptBytes = this.#kept.reduce((sum, each) => sum + each.length, 0);
    if (keptBytes + part.length > keptInputMaxBytes)
      throw new ConnectionError("unreachable", "the terminal is not connected, and too much was typed meanwhile");
    this.#kept.push(part);
  }

  #end(error?: unknown): void {
    if (error !== undefined) this.#error ??= error;
    this.#output.end();
    this.#onTaken?.();
    this.#settle();
  }
}

const unreachable = new ConnectionError("unreachable", "");
const finalCodes = new Set<number>([
  closeCodes.badMessage,
  closeCodes.destroyed,
  closeCodes.paused,
  closeCodes.revoked,
  closeCodes.silent,
  closeCodes.tooSlow,
]);

async function join(
  transport: Transport,
  path: string,
  first: First,
  { signal }: { signal?: AbortSignal | undefined },
): Promise<{ socket: Socket; tag: string; pid: number }> {
  const socket: Socket = await MessageSocket.open(transport, path, {}, { signal });
  const stop = () => socket.close();
  signal?.addEventListener("abort", stop, { once: true });
  socket.send(first);
  let message = await socket.next();
  while (message?.type === "ping") message = await socket.next();
  signal?.removeEventListener("abort", stop);
  if (signal?.aborted) throw signal.reason;
  if (message?.type === "started") return { socket, tag: message.tag, pid: message.pid };
  await socket.next();
  const said = message?.type === "error" ? message.data : undefined;
  if (message?.type === "error" && message.code !== undefined) throw refusalWith(message.code, message.data);
  throw endingError(socket.ending, said, first.type === "connect" ? "not_found" : "invalid_request");
}
