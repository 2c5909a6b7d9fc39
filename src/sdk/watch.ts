/** The changes of a directory in a capsule, as they happen. */
import { closeCodes } from "../wire/errors.ts";
import type { WatchServerMessage } from "../wire/file-watch.ts";
import { endingError, MessageSocket } from "./message-socket.ts";
import { refuseUnknown } from "./options.ts";
import type { CallOptions, Transport } from "./transport.ts";

export interface WatchOptions extends CallOptions {
  /** All directories below it too, those that are made later included. Default: false. */
  recursive?: boolean | undefined;
}

/** Paths are absolute. */
export type FileChange =
  /** `create`: made or moved in; `remove`: removed or moved out; `chmod`: another mode, owner or time. */
  | { event: "create" | "write" | "remove" | "chmod"; path: string }
  | { event: "rename"; path: string; to: string }
  /** Changes were lost: list the directory anew. The watch goes on. */
  | { event: "overflow" };

type Socket = MessageSocket<WatchServerMessage, never>;

/**
 * Iterate it once. The iteration ends when the directory is removed or moved away, behind its `remove`, and after `close()`. When the
 * watch breaks otherwise, it throws: ServiceError `invalid_state` (paused), `not_found` (the capsule was destroyed), ConnectionError.
 *
 * ```ts
 * for await (const change of await capsule.files.watch("/work", { recursive: true })) console.log(change);
 * ```
 */
export class Watch implements AsyncIterable<FileChange> {
  readonly #socket: Socket;
  readonly #signal: AbortSignal | undefined;
  #isRead = false;
  #isClosed = false;

  /** @internal Resolves when the guest watches the directory; `endpoint`: the path in the API. */
  static async open(transport: Transport, endpoint: string, path: string, options: WatchOptions): Promise<Watch> {
    const { recursive, signal, timeoutMs, ...unknown } = options;
    refuseUnknown("files.watch", unknown);
    const query = { path, ...(recursive === undefined ? {} : { recursive: String(recursive) }) };
    const socket: Socket = await MessageSocket.open(transport, endpoint, query, { signal, timeoutMs });
    const watch = new Watch(socket, signal);
    const first = await watch.#next();
    if (first?.type === "ready") return watch;
    if (signal?.aborted) throw signal.reason;
    throw endingError(socket.ending, first?.type === "error" ? first.data : undefined, "agent_error");
  }

  private constructor(socket: Socket, signal: AbortSignal | undefined) {
    this.#socket = socket;
    this.#signal = signal;
  }

  /** Ends the watch, as leaving the loop does. */
  close(): void {
    this.#isClosed = true;
    this.#socket.close();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<FileChange, void, undefined> {
    if (this.#isRead) throw new TypeError("a watch can be read only once");
    this.#isRead = true;
    let said: string | undefined;
    try {
      for (let message = await this.#next(); message !== undefined; message = await this.#next()) {
        if (message.type === "event") yield changeOf(message);
        else if (message.type === "overflow") yield { event: "overflow" };
        else if (message.type === "error") said = message.data;
      }
      if (this.#signal?.aborted) throw this.#signal.reason;
      if (this.#isClosed || (said === undefined && this.#socket.ending?.code === closeCodes.done)) return;
      throw endingError(this.#socket.ending, said, "agent_error");
    } finally {
      this.close();
    }
  }

  /** The signal ends it. */
  async #next(): Promise<WatchServerMessage | undefined> {
    const stop = () => this.#socket.close();
    if (this.#signal?.aborted) stop();
    this.#signal?.addEventListener("abort", stop, { once: true });
    try {
      return await this.#socket.next();
    } finally {
      this.#signal?.removeEventListener("abort", stop);
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }
}

function changeOf(message: Extract<WatchServerMessage, { type: "event" }>): FileChange {
  const { event, path } = message;
  return event === "rename" ? { event, path, to: message.to } : { event, path };
}
