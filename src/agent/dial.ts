/** DIAL: a connection to a server in the guest, as a Duplex. Neither side is read faster than the other reads. */
import { Duplex } from "node:stream";
import { CapsuleError } from "../wire/errors.ts";
import type { Channel } from "./channel.ts";
import { ChunkBuffer } from "./chunk-buffer.ts";
import { DataChannel, EventKind, expectKind, request, Verb, whole } from "./protocol.ts";
import { ProtocolError, type RecordWriter } from "./records.ts";
import type { Stream, StreamHandler } from "./stream.ts";

/** Time for the guest to take the last bytes of a connection that both sides have ended. */
const lingerMs = 60_000;

export function dialRequest(port: number): RecordWriter {
  return request(Verb.DIAL).u16(port);
}

export function decodeDialledEvent(payload: Buffer): void {
  whole(payload, (fields) => expectKind(fields, EventKind.DIALLED));
}

const endings = ["ended", "reset"] as const;

export function decodeEnding(payload: Buffer): "ended" | "reset" {
  const ending = endings[whole(payload, (fields) => fields.u8())];
  if (ending === undefined) throw new ProtocolError("a connection that ended in an unknown way");
  return ending;
}

/** The server, or the guest's kernel, has reset the connection. */
export class ConnectionReset extends CapsuleError {
  constructor() {
    super("agent_error", "the connection was reset");
  }
}

/** Resolves when the server has accepted. From then on the signal does nothing. */
export async function dial(channel: Channel, port: number, signal?: AbortSignal): Promise<Duplex> {
  const dialling = new AbortController();
  const give = () => dialling.abort(signal?.reason);
  if (signal?.aborted) give();
  signal?.addEventListener("abort", give);
  try {
    return await new Promise((resolve, reject) => {
      new Dial(channel, port, resolve, reject).stream.cancelOn(dialling.signal);
    });
  } finally {
    signal?.removeEventListener("abort", give);
  }
}

class Dial implements StreamHandler {
  readonly stream: Stream;
  readonly #resolve: (connection: Duplex) => void;
  readonly #reject: (error: Error) => void;
  #connection: GuestConnection | undefined;

  constructor(channel: Channel, port: number, resolve: (connection: Duplex) => void, reject: (error: Error) => void) {
    this.#resolve = resolve;
    this.#reject = reject;
    this.stream = channel.open(Verb.DIAL, dialRequest(port), this);
  }

  event(payload: Buffer): void {
    decodeDialledEvent(payload);
    if (this.#connection) throw new ProtocolError("a connection that was accepted twice");
    this.#connection = new GuestConnection(this.stream);
    this.#resolve(this.#connection);
  }

  data(output: number, bytes: Buffer): void {
    if (output !== DataChannel.MAIN) throw new ProtocolError(`data of a connection on channel ${output}`);
    this.#accepted().arrived(bytes);
  }

  ended(): void {
    this.#accepted().hasEnded();
  }

  drained(): void {
    this.#connection?.drained();
  }

  result(payload: Buffer): void {
    const connection = this.#accepted();
    if (decodeEnding(payload) === "reset") connection.fail(new ConnectionReset());
    else if (this.stream.hasEnded && connection.isEnding) connection.settled();
    else throw new ProtocolError("a connection that ended before its data");
  }

  failed(error: Error): void {
    if (this.#connection) this.#connection.fail(error);
    else this.#reject(error);
  }

  #accepted(): GuestConnection {
    if (!this.#connection) throw new ProtocolError("data of a connection that was not accepted");
    return this.#connection;
  }
}

/**
 * Frames of one turn of the event loop are handed on together, so that many small ones cost the reader no more than their bytes.
 */
class GuestConnection extends Duplex {
  readonly #stream: Stream;
  readonly #arrived = new ChunkBuffer();
  #isWanted = false;
  #isScheduled = false;
  #hasEnded = false;
  #failure: Error | undefined;
  #onDrain: (() => void) | undefined;
  #lingering: NodeJS.Timeout | undefined;
  isEnding = false;

  constructor(stream: Stream) {
    super({ allowHalfOpen: true });
    this.#stream = stream;
    // Without a listener, a reset before the reader attaches would end the daemon; the reader finds the stream destroyed.
    this.on("error", () => {});
  }

  // ---- From the guest

  arrived(bytes: Buffer): void {
    if (this.destroyed) this.#stream.consumed(bytes.length);
    else this.#arrived.add(bytes);
    this.#schedule();
  }

  hasEnded(): void {
    this.#hasEnded = true;
    this.#schedule();
  }

  /** Behind what has arrived. */
  fail(error: Error): void {
    this.#failure = error;
    this.#schedule();
  }

  settled(): void {
    clearTimeout(this.#lingering);
  }

  drained(): void {
    const done = this.#onDrain;
    this.#onDrain = undefined;
    done?.();
  }

  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      this.#handOn();
    });
  }

  #handOn(): void {
    if (this.destroyed) return;
    if (this.#isWanted && this.#arrived.length > 0) {
      const bytes = this.#arrived.take();
      this.#isWanted = this.push(bytes);
      this.#stream.consumed(bytes.length);
    }
    if (this.#arrived.length > 0) return;
    if (this.#failure !== undefined) {
      if (this.readableLength === 0) this.destroy(this.#failure);
    } else if (this.#hasEnded) {
      this.#hasEnded = false;
      this.push(null);
    }
  }

  // ---- Duplex

  override _read(): void {
    this.#isWanted = true;
    this.#handOn();
  }

  override read(size?: number): Buffer | null {
    const chunk = super.read(size) as Buffer | null;
    if (this.#failure !== undefined) this.#schedule();
    return chunk;
  }

  override _write(chunk: Buffer, _encoding: string, done: (error?: Error | null) => void): void {
    if (this.#failure !== undefined || this.#stream.send(chunk)) done();
    else this.#onDrain = done;
  }

  override _final(done: (error?: Error | null) => void): void {
    this.isEnding = true;
    this.#stream.end();
    done();
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#arrived.discard();
    this.#onDrain = undefined;
    if (error === null && this.readableEnded && this.writableFinished && this.#stream.isOpen) {
      this.#lingering = setTimeout(() => this.#stream.cancel(), lingerMs).unref();
    } else this.#stream.cancel();
    done(error);
  }
}
