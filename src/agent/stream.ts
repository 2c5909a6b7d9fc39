/**
 * One stream of a connection: its counts, its credit in both directions, and the bytes that wait for credit.
 * What the bytes mean is its handler's business.
 */
import { FrameType, maxPayloadBytes } from "./frames.ts";
import { decodeCount, decodeTotal, emptyRecord, endRecord, limits, type Verb, windowRecord } from "./protocol.ts";
import { ProtocolError } from "./records.ts";

/** `result` or `failed` is the last call. A handler that finds a payload wrong throws ProtocolError. */
export interface StreamHandler {
  event(payload: Buffer): void;
  /** The bytes are a view that dies with the call. */
  data(output: number, bytes: Buffer): void;
  result(payload: Buffer): void;
  failed(error: Error): void;
  /** After `send` answered false: everything is on its way. */
  drained?(): void;
}

/** What a stream needs of the connection it belongs to. */
export interface Carrier {
  readonly congested: boolean;
  control(type: number, stream: number, payload: Uint8Array): void;
  data(stream: number, bytes: Uint8Array): void;
  /** Calls `pump` when the congestion is over. */
  whenClear(stream: Stream): void;
  forget(stream: Stream): void;
}

export class Stream {
  readonly id: number;
  readonly verb: Verb;
  readonly handler: StreamHandler;
  readonly #carrier: Carrier;
  #open = true;

  /** What the guest may still send; what it has sent; what of that is not dealt with; dealt with, but not yet granted. */
  #allowanceBytes: number = limits.windowBytes;
  #receivedBytes = 0;
  #heldBytes = 0;
  #owedBytes = 0;
  #grantBytes: number = limits.grantBytes;
  #endReceived = false;

  #creditBytes: number = limits.windowBytes;
  #sentBytes = 0;
  #queue: Uint8Array[] = [];
  #queuedBytes = 0;
  #ending = false;
  #blocked = false;
  /** Events that wait for the pipe, the latest of each name. */
  readonly #latest = new Map<string, Uint8Array>();

  constructor(id: number, verb: Verb, handler: StreamHandler, carrier: Carrier) {
    this.id = id;
    this.verb = verb;
    this.handler = handler;
    this.#carrier = carrier;
  }

  get open(): boolean {
    return this.#open;
  }

  /** Bytes given to `send` that wait for credit or for the pipe. */
  get queuedBytes(): number {
    return this.#queuedBytes;
  }

  get sentBytes(): number {
    return this.#sentBytes;
  }

  /** What the guest may still send. */
  get allowanceBytes(): number {
    return this.#allowanceBytes;
  }

  /** Bytes that the receiver has dealt with. */
  get consumedBytes(): number {
    return this.#receivedBytes - this.#heldBytes;
  }

  /** The guest has ended its data, and the sum was right. */
  get ended(): boolean {
    return this.#endReceived;
  }

  /** Sends data as credit and pipe allow. False: wait for `drained`. The bytes must not change afterwards. */
  send(bytes: Uint8Array): boolean {
    if (!this.#open || bytes.length === 0) return this.#queuedBytes === 0;
    this.#queue.push(bytes);
    this.#queuedBytes += bytes.length;
    this.pump();
    this.#blocked = this.#queuedBytes > 0;
    return !this.#blocked;
  }

  /** No more data after what is queued. */
  end(): void {
    this.#ending = true;
    this.pump();
  }

  event(payload: Uint8Array): void {
    if (this.#open) this.#carrier.control(FrameType.EVENT, this.id, payload);
  }

  /** An event that makes earlier ones of its name needless: of those that the pipe does not take only the last is sent. */
  latestEvent(name: string, payload: Uint8Array): void {
    if (!this.#open) return;
    if (this.#carrier.congested) {
      this.#latest.set(name, payload);
      this.#carrier.whenClear(this);
    } else {
      this.event(payload);
    }
  }

  /** The receiver has dealt with bytes that `data` gave it. */
  consumed(bytes: number): void {
    const counted = Math.min(bytes, this.#heldBytes);
    this.#heldBytes -= counted;
    this.#owedBytes += counted;
    if (this.#owedBytes < this.#grantBytes || !this.#open || this.#endReceived) return;
    this.#carrier.control(FrameType.WINDOW, this.id, windowRecord(this.#owedBytes));
    this.#allowanceBytes += this.#owedBytes;
    this.#owedBytes = 0;
  }

  /** Lets the guest have more bytes under way: for bulk, where each grant costs both sides more than its bytes. */
  widen(): void {
    this.#grantBytes = limits.wideWindowBytes / 4;
    const moreBytes = limits.wideWindowBytes - limits.windowBytes;
    this.#carrier.control(FrameType.WINDOW, this.id, windowRecord(moreBytes));
    this.#allowanceBytes += moreBytes;
  }

  /** The handler hears nothing more. */
  cancel(): void {
    if (!this.#open) return;
    this.#carrier.control(FrameType.CANCEL, this.id, emptyRecord);
    this.#carrier.forget(this);
    this.shut();
  }

  /** When the signal says so the stream is cancelled, and its handler hears why. */
  heed(signal: AbortSignal | undefined): void {
    const abandon = () => {
      if (!this.#open) return;
      this.cancel();
      this.handler.failed(signal?.reason);
    };
    if (signal?.aborted) queueMicrotask(abandon);
    else signal?.addEventListener("abort", abandon, { once: true });
  }

  /** The stream is over, whoever ended it. */
  shut(): void {
    this.#open = false;
    this.#queue = [];
    this.#queuedBytes = 0;
    this.#latest.clear();
  }

  /** Sends what may be sent now. */
  pump(): void {
    if (!this.#carrier.congested) this.#sendLatest();
    while (this.#open && this.#queuedBytes > 0 && this.#creditBytes > 0) {
      if (this.#carrier.congested) {
        this.#carrier.whenClear(this);
        return;
      }
      this.#sendPart();
    }
    if (!this.#open || this.#queuedBytes > 0) return;
    if (this.#ending) {
      this.#ending = false;
      this.#carrier.control(FrameType.END, this.id, endRecord(this.#sentBytes));
    }
    if (this.#blocked) {
      this.#blocked = false;
      this.handler.drained?.();
    }
  }

  #sendLatest(): void {
    const events = [...this.#latest.values()];
    this.#latest.clear();
    for (const payload of events) this.event(payload);
  }

  #sendPart(): void {
    const first = this.#queue[0]!;
    const length = Math.min(first.length, maxPayloadBytes, this.#creditBytes);
    if (length === first.length) this.#queue.shift();
    else this.#queue[0] = first.subarray(length);
    this.#queuedBytes -= length;
    this.#creditBytes -= length;
    this.#sentBytes += length;
    this.#carrier.data(this.id, first.subarray(0, length));
  }

  // ---- What the guest sent

  receiveData(output: number, bytes: Buffer): void {
    if (this.#endReceived) throw new ProtocolError("data after the end of data");
    if (bytes.length === 0) throw new ProtocolError("data without a byte");
    if (bytes.length > this.#allowanceBytes) throw new ProtocolError("data beyond the window");
    this.#allowanceBytes -= bytes.length;
    this.#receivedBytes += bytes.length;
    this.#heldBytes += bytes.length;
    this.handler.data(output, bytes);
  }

  receiveEnd(payload: Buffer): void {
    const total = decodeTotal(payload);
    if (this.#endReceived || total !== this.#receivedBytes) {
      throw new ProtocolError(`an end after ${total} bytes, of which ${this.#receivedBytes} arrived`);
    }
    this.#endReceived = true;
  }

  receiveWindow(payload: Buffer): void {
    const credit = decodeCount(payload);
    if (credit === 0) throw new ProtocolError("credit for nothing");
    if (this.#creditBytes + credit > limits.windowBytes)
      throw new ProtocolError(`credit for ${credit} bytes nobody sent`);
    this.#creditBytes += credit;
    this.pump();
  }
}
