/** A TCP connection to a server in a capsule, as a pair of streams. */
import { closeCodes } from "../wire/errors.ts";
import { endingError, MessageSocket } from "./message-socket.ts";
import { refuseUnknown } from "./options.ts";
import { after } from "./timer.ts";
import type { CallOptions, Transport } from "./transport.ts";

type Socket = MessageSocket<never, never>;

/** The text message that ends one direction. */
const endMessage = "end";
/** Below the service's bound of a message. */
const pieceBytes = 256 * 1024;
const lingerMs = 5_000;

/**
 * The end of each direction is passed on alone: `writable.close()` ends the one to the server, and `readable` ends with the one from it.
 * A reset fails both with ServiceError `agent_error`, a pause with `invalid_state`.
 *
 * ```ts
 * const { readable, writable } = await capsule.connect(5432);
 * ```
 */
export class PortConnection {
  readonly readable: ReadableStream<Uint8Array>;
  readonly writable: WritableStream<Uint8Array>;
  readonly #socket: Socket;
  #isReadCancelled = false;
  #isWriteOver = false;

  /** @internal Resolves when the server has accepted. The signal ends an open connection, too. */
  static async open(transport: Transport, path: string, options: CallOptions): Promise<PortConnection> {
    const { signal, timeoutMs, ...unknown } = options;
    refuseUnknown("connect", unknown);
    const socket: Socket = await MessageSocket.open(transport, path, {}, { signal, timeoutMs });
    const stop = () => socket.close();
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop, { once: true });
    return new PortConnection(socket);
  }

  private constructor(socket: Socket) {
    this.#socket = socket;
    this.readable = new ReadableStream<Uint8Array>({
      pull: (controller) => this.#pull(controller),
      cancel: () => this.#cancel(),
    });
    this.writable = new WritableStream<Uint8Array>({
      write: (chunk) => this.#write(chunk),
      close: () => this.#endWriting(),
      abort: () => this.close(),
    });
  }

  /** Resets the connection, unless both directions have ended. */
  close(): void {
    this.#socket.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }

  async #pull(controller: ReadableStreamDefaultController<Uint8Array>): Promise<void> {
    const data = await this.#socket.nextData();
    if (data instanceof Uint8Array) controller.enqueue(data);
    else if (data === endMessage || this.#socket.ending?.code === closeCodes.done) controller.close();
    else controller.error(this.#broken());
  }

  /** Later bytes of the server are thrown away, so that its end and the socket's are still seen. */
  #cancel(): void {
    this.#isReadCancelled = true;
    void this.#discard();
    if (this.#isWriteOver) this.#linger();
  }

  /** Nobody sees the server's end any more. It has some time to take the last bytes. */
  #linger(): void {
    const callOff = after(lingerMs, () => this.close());
    void this.#discard().then(callOff);
  }

  async #discard(): Promise<void> {
    while ((await this.#socket.nextData()) !== undefined);
  }

  async #write(chunk: Uint8Array): Promise<void> {
    for (let at = 0; at < chunk.length; at += pieceBytes) {
      if (this.#socket.ending !== undefined) throw this.#broken();
      this.#socket.sendData(chunk.subarray(at, at + pieceBytes));
      await this.#socket.drained();
    }
  }

  #endWriting(): void {
    this.#isWriteOver = true;
    this.#socket.sendData(endMessage);
    if (this.#isReadCancelled) this.#linger();
  }

  #broken(): Error {
    return endingError(this.#socket.ending, undefined, "agent_error");
  }
}
