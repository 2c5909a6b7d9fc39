/**
 * A WebSocket of the service with JSON messages: `send` and `for await`. A slow reader pauses the socket where the
 * runtime can do that (backpressure); elsewhere messages are buffered up to a limit, then the socket is closed.
 */
import { closeCodes } from "../wire/errors.ts";
import { ConnectionError, type ErrorCode, ServiceError } from "./errors.ts";
import { Queue } from "./queue.ts";
import { sleep } from "./retry.ts";
import { after } from "./timer.ts";
import type { CallOptions, Transport, WebSocketLike } from "./transport.ts";

const pauseAtBytes = 1024 * 1024;
const behindMaxBytes = 64 * 1024 * 1024;
const unsentMaxBytes = 1024 * 1024;
const drainPollMs = 5;
const openMs = 30_000;
/** The close code of a broken connection; never sent. */
const cutCode = 1006;

export interface Ending {
  code: number;
  reason: string;
}

export class MessageSocket<In, Out extends object> {
  readonly #socket: WebSocketLike;
  readonly #queue: Queue<string | Uint8Array>;
  #isPaused = false;
  #isClosing = false;
  #ending: Ending | undefined;

  /**
   * Resolves when the socket is open. Throws the service's refusal: browsers hide it, so the same request is repeated
   * without a WebSocket to read it.
   */
  static async open<In, Out extends object>(
    transport: Transport,
    path: string,
    query: Record<string, string>,
    options: CallOptions,
  ): Promise<MessageSocket<In, Out>> {
    const socket = await transport.socket(path, query, options);
    const opened = new MessageSocket<In, Out>(socket);
    try {
      await opened.#becomesOpen(options);
      return opened;
    } catch (error) {
      opened.close();
      if (!(error instanceof ConnectionError) || error.code !== "cut_off") throw error;
      await transport.done({ ...options, method: "GET", path, query }).catch((refusal) => {
        if (!isUpgradeRequired(refusal)) throw refusal;
      });
      throw error;
    }
  }

  private constructor(socket: WebSocketLike) {
    this.#socket = socket;
    this.#queue = new Queue(() => this.#flow());
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }: { data: unknown }) => this.#receive(data);
    socket.onerror = () => {}; // a close event follows
    socket.onclose = ({ code, reason }: Ending) => this.#over({ code, reason });
  }

  /** Why it was closed; undefined while it is open. */
  get ending(): Ending | undefined {
    return this.#ending;
  }

  send(message: Out): void {
    this.sendData(JSON.stringify(message));
  }

  /** Text as a text message, bytes as a binary one. */
  sendData(data: string | Uint8Array): void {
    if (this.#ending === undefined && !this.#isClosing) this.#socket.send(data);
  }

  /** Resolves when the send buffer is almost empty, or the socket is closed. */
  async drained(): Promise<void> {
    while (this.#ending === undefined && this.#socket.bufferedAmount > unsentMaxBytes) await sleep(drainPollMs);
  }

  /** The messages until the socket is closed; then `ending` is set. */
  async next(): Promise<In | undefined> {
    const data = await this.nextData();
    return data === undefined ? undefined : (JSON.parse(String(data)) as In);
  }

  /** The next message as it came: a text, or the bytes of a binary one. */
  async nextData(): Promise<string | Uint8Array | undefined> {
    return (await this.#queue.next()).value ?? undefined;
  }

  /** Stops reading and closes. */
  close(): void {
    this.#isClosing = true;
    this.#queue.end();
    this.#resume();
    this.#socket.close(closeCodes.done);
  }

  #becomesOpen({ signal, timeoutMs = openMs }: CallOptions): Promise<void> {
    return new Promise((resolve, reject) => {
      const callOff = after(timeoutMs, () =>
        reject(new ConnectionError("timed_out", "the WebSocket did not open in time")),
      );
      const stop = () => reject(signal?.reason);
      const settle = () => {
        callOff();
        signal?.removeEventListener("abort", stop);
      };
      if (signal?.aborted) stop();
      signal?.addEventListener("abort", stop, { once: true });
      this.#socket.onopen = () => {
        settle();
        resolve();
      };
      this.#socket.onclose = ({ code, reason }: Ending) => {
        settle();
        this.#over({ code, reason });
        reject(new ConnectionError("cut_off", "the WebSocket was not accepted"));
      };
    });
  }

  #receive(data: unknown): void {
    const message = data instanceof ArrayBuffer ? new Uint8Array(data) : String(data);
    this.#queue.push(message, message.length);
    this.#flow();
  }

  #flow(): void {
    const { sizeBytes } = this.#queue;
    if (sizeBytes > pauseAtBytes) {
      if (!this.#isPaused && this.#socket.pause !== undefined) {
        this.#isPaused = true;
        this.#socket.pause();
      }
      if (sizeBytes > behindMaxBytes) {
        this.#queue.fail(new ConnectionError("fell_behind", "output came faster than it was read, and was cut"));
        this.#isClosing = true;
        this.#socket.close(closeCodes.done);
      }
    } else this.#resume();
  }

  #resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#socket.resume?.();
  }

  #over(ending: Ending): void {
    this.#ending ??= ending;
    this.#queue.end();
  }
}

/** The service refuses the request only because it asks for no WebSocket. */
function isUpgradeRequired(refusal: unknown): boolean {
  return refusal instanceof ServiceError && refusal.details?.reason === "upgrade_required";
}

const meanings: Record<number, ErrorCode> = {
  [closeCodes.badMessage]: "invalid_request",
  [closeCodes.revoked]: "unauthorized",
  [closeCodes.destroyed]: "not_found",
  [closeCodes.silent]: "request_timeout",
  [closeCodes.paused]: "invalid_state",
  [closeCodes.broken]: "agent_error",
  [closeCodes.busy]: "quota_exceeded",
};

/** The error for an unexpected close. `said`: the service's last error message; `fallback`: its code. */
export function endingError(
  ending: Ending | undefined,
  said: string | undefined,
  fallback: ErrorCode,
): ServiceError | ConnectionError {
  const { code, reason } = ending ?? { code: cutCode, reason: "" };
  const text = said ?? (reason === "" ? "the connection was cut" : reason);
  if (code === closeCodes.tooSlow) return new ConnectionError("fell_behind", text);
  const meaning = meanings[code] ?? (said === undefined || code === cutCode ? undefined : fallback);
  return meaning === undefined ? new ConnectionError("cut_off", text) : new ServiceError(meaning, text);
}
