/**
 * One stream of a connection: byte counts, credit in both directions, and bytes queued for credit. Its handler
 * interprets the bytes.
 */
import { FrameType, maxPayloadBytes } from "./frames.ts";
import { decodeCount, decodeTotal, emptyRecord, endRecord, limits, type Verb, windowRecord } from "./protocol.ts";
import { ProtocolError } from "./records.ts";
import { SendQueue } from "./send-queue.ts";

/** `result` or `failed` is the last call. A handler throws ProtocolError for an invalid payload. */
export interface StreamHandler {
  event(payload: Buffer): void;
  /** The bytes are a view that is valid only during the call. */
  data(output: number, bytes: Buffer): void;
  result(payload: Buffer): void;
  failed(error: Error): void;
  /** The guest has ended its data. */
  ended?(): void;
  /** After `send` returned false: everything has been sent. */
  drained?(): void;
}

/** The connection, as its streams use it. */
export interface StreamTransport {
  readonly congested: boolean;
  control(type: number, stream: number, payload: Uint8Array): void;
  data(stream: number, bytes: Uint8Array): void;
  /** Calls the stream's `pump` when the pipe is no longer congested. */
  onceDrained(stream: Stream): void;
  release(stream: Stream): void;
}

export class Stream {
  readonly id: number;
  readonly verb: Verb;
  readonly handler: StreamHandler;
  readonly #transport: StreamTransport;
  #isOpen = true;

  // Receiving: bytes that the guest may still send; received; received and not consumed; consumed and not yet granted
  // again.

  #allowanceBytes: number = limits.windowBytes;
  #receivedBytes = 0;
  #heldBytes = 0;
  #ungrantedBytes = 0;
  #grantBytes: number = limits.grantBytes;
  #hasReceivedEnd = false;

  #creditBytes: number = limits.windowBytes;
  #sentBytes = 0;
  readonly #queue = new SendQueue();
  #isEnding = false;
  #isBlocked = false;
  /** Events queued while the pipe is congested, the latest of each name. */
  readonly #latest = new Map<string, Uint8Array>();

  constructor(id: number, verb: Verb, handler: StreamHandler, transport: StreamTransport) {
    this.id = id;
    this.verb = verb;
    this.handler = handler;
    this.#transport = transport;
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Bytes passed to `send` that are queued for credit or for the pipe. */
  get queuedBytes(): number {
    return this.#queue.length;
  }

  get sentBytes(): number {
    return this.#sentBytes;
  }

  /** Bytes that the guest may still send. */
  get allowanceBytes(): number {
    return this.#allowanceBytes;
  }

  /** Bytes that the receiver has processed. */
  get consumedBytes(): number {
    return this.#receivedBytes - this.#heldBytes;
  }

  /** The guest has ended its data, and the total was right. */
  get hasEnded(): boolean {
    return this.#hasReceivedEnd;
  }

  /**
   * Sends data as far as credit and pipe allow, and queues the rest. False: wait for `drained`. The bytes must not
   * change afterwards.
   */
  send(bytes: Uint8Array): boolean {
    if (!this.#isOpen || bytes.length === 0) return this.#queue.length === 0;
    this.#queue.add(bytes);
    this.pump();
    this.#isBlocked = this.#queue.length > 0;
    return !this.#isBlocked;
  }

  /** Ends the data after the queued bytes. */
  end(): void {
    this.#isEnding = true;
    this.pump();
  }

  event(payload: Uint8Array): void {
    if (this.#isOpen) this.#transport.control(FrameType.EVENT, this.id, payload);
  }

  /** Sends an event that supersedes earlier ones of its name. While the pipe is congested only the latest is kept. */
  latestEvent(name: string, payload: Uint8Array): void {
    if (!this.#isOpen) return;
    if (this.#transport.congested) {
      this.#latest.set(name, payload);
      this.#transport.onceDrained(this);
    } else {
      this.event(payload);
    }
  }

  /** The receiver has processed bytes of `data`; the guest gets credit for as many. */
  consumed(bytes: number): void {
    const counted = Math.min(bytes, this.#heldBytes);
    this.#heldBytes -= counted;
    this.#ungrantedBytes += counted;
    if (this.#ungrantedBytes < this.#grantBytes || !this.#isOpen || this.#hasReceivedEnd) return;
    this.#transport.control(FrameType.WINDOW, this.id, windowRecord(this.#ungrantedBytes));
    this.#allowanceBytes += this.#ungrantedBytes;
    this.#ungrantedBytes = 0;
  }

  /** Enlarges the window for a large transfer, so that fewer WINDOW frames are sent. */
  widen(): void {
    this.#grantBytes = limits.wideWindowBytes / 4;
    const moreBytes = limits.wideWindowBytes - limits.windowBytes;
    this.#transport.control(FrameType.WINDOW, this.id, windowRecord(moreBytes));
    this.#allowanceBytes += moreBytes;
  }

  /** The handler gets no further calls. */
  cancel(): void {
    if (!this.#isOpen) return;
    this.#transport.control(FrameType.CANCEL, this.id, emptyRecord);
    this.#transport.release(this);
    this.close();
  }

  /** When the signal fires, cancels the stream and fails its handler with the signal's reason. */
  cancelOn(signal: AbortSignal | undefined): void {
    const onAbort = () => {
      if (!this.#isOpen) return;
      this.cancel();
      this.handler.failed(signal?.reason);
    };
    if (signal?.aborted) queueMicrotask(onAbort);
    else signal?.addEventListener("abort", onAbort, { once: true });
  }

  /** Marks the stream as ended and drops queued bytes. */
  close(): void {
    this.#isOpen = false;
    this.#queue.clear();
    this.#latest.clear();
  }

  /** Sends queued bytes as far as credit and pipe allow. */
  pump(): void {
    if (!this.#transport.congested) this.#sendLatest();
    while (this.#isOpen && this.#queue.length > 0 && this.#creditBytes > 0) {
      if (this.#transport.congested) {
        this.#transport.onceDrained(this);
        return;
      }
      this.#sendPart();
    }
    if (!this.#isOpen || this.#queue.length > 0) return;
    if (this.#isEnding) {
      this.#isEnding = false;
      this.#transport.control(FrameType.END, this.id, endRecord(this.#sentBytes));
    }
    if (this.#isBlocked) {
      this.#isBlocked = false;
      this.handler.drained?.();
    }
  }

  #sendLatest(): void {
    const events = [...this.#latest.values()];
    this.#latest.clear();
    for (const payload of events) this.event(payload);
  }

  #sendPart(): void {
    const bytes = this.#queue.take(Math.min(maxPayloadBytes, this.#creditBytes));
    this.#creditBytes -= bytes.length;
    this.#sentBytes += bytes.length;
    this.#transport.data(this.id, bytes);
  }

  // ---- Received frames

  receiveData(output: number, bytes: Buffer): void {
    if (this.#hasReceivedEnd) throw new ProtocolError("data after the end of data");
    if (bytes.length === 0) throw new ProtocolError("an empty data frame");
    if (bytes.length > this.#allowanceBytes) throw new ProtocolError("data beyond the window");
    this.#allowanceBytes -= bytes.length;
    this.#receivedBytes += bytes.length;
    this.#heldBytes += bytes.length;
    this.handler.data(output, bytes);
  }

  receiveEnd(payload: Buffer): void {
    const total = decodeTotal(payload);
    if (this.#hasReceivedEnd || total !== this.#receivedBytes) {
      throw new ProtocolError(`an end after ${total} bytes, but ${this.#receivedBytes} arrived`);
    }
    this.#hasReceivedEnd = true;
    this.handler.ended?.();
  }

  receiveWindow(payload: Buffer): void {
    const credit = decodeCount(payload);
    if (credit === 0) throw new ProtocolError("a grant of 0 bytes");
    if (this.#creditBytes + credit > limits.windowBytes)
      throw new ProtocolError(`a grant of ${credit} bytes that were not sent`);
    this.#creditBytes += credit;
    this.pump();
  }
}
