/** One stream of a gateway: credit in both directions, byte counts, and bytes queued for credit. */
import { FrameType, maxPayloadBytes } from "../agent/frames.ts";
import { decodeCount, decodeEmpty, decodeTotal, emptyRecord, endRecord, windowRecord } from "../agent/protocol.ts";
import { ProtocolError } from "../agent/records.ts";
import { SendQueue } from "../agent/send-queue.ts";
import type { ByteBudget } from "./byte-budget.ts";
import { type Answer, answerRecord, type ConnectFailure, failRecord, openedEvent } from "./records.ts";

/** Bytes that each side may send before the first WINDOW. */
export const firstWindowBytes = 16_384;
const windowMaxBytes = 1 << 20;
/** Far more credit than a gateway gives. */
const creditMaxBytes = 1 << 30;

/** The connection behind a stream. */
export interface StreamSink {
  /** The bytes are a view that is valid only during the call. */
  data(bytes: Buffer): void;
  ended(): void;
  /** After `send` returned false: everything has been sent. */
  drained(): void;
  /** The stream is closed: after both have sent END, or dropped. The last call. */
  closed(hasEnded: boolean): void;
}

/** The port, as its streams use it. */
export interface StreamPort {
  readonly isCongested: boolean;
  /** Bytes that windows may exceed their first size by. */
  readonly windows: ByteBudget;
  control(type: number, stream: number, payload: Uint8Array): void;
  data(stream: number, bytes: Uint8Array): void;
  /** Calls the stream's `pump` when the port is no longer congested. */
  onceDrained(stream: PortStream): void;
  /** `unreadBytes`: what the gateway may still send on it. */
  release(stream: PortStream, unreadBytes: number): void;
}

export class PortStream {
  readonly id: number;
  readonly #port: StreamPort;
  sink: StreamSink | undefined;
  #isClosed = false;
  #isOpened = false;

  // Receiving: the window's size, what the gateway may still send of it, received, not consumed, and not granted again.
  #windowBytes = firstWindowBytes;
  #allowanceBytes = firstWindowBytes;
  #receivedBytes = 0;
  #heldBytes = 0;
  #ungrantedBytes = 0;
  #hasReceivedEnd = false;
  #isHeld = false;

  #creditBytes = firstWindowBytes;
  #sentBytes = 0;
  readonly #queue = new SendQueue();
  #isEnding = false;
  #hasSentEnd = false;
  #isBlocked = false;

  constructor(id: number, port: StreamPort) {
    this.id = id;
    this.#port = port;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  get queuedBytes(): number {
    return this.#queue.length;
  }

  opened(): void {
    if (this.#isClosed) return;
    this.#isOpened = true;
    this.#port.control(FrameType.EVENT, this.id, openedEvent);
  }

  fail(code: ConnectFailure, message: string): void {
    this.#closeWith(FrameType.FAIL, failRecord(code, message));
  }

  result(answer: Answer): void {
    this.#closeWith(FrameType.RESULT, answerRecord(answer));
  }

  reset(): void {
    this.#closeWith(FrameType.RESET, emptyRecord);
  }

  /** False: wait for `drained`. The bytes must not change afterwards. */
  send(bytes: Uint8Array): boolean {
    if (this.#isClosed) return true;
    this.#queue.add(bytes);
    this.pump();
    this.#isBlocked = this.#queue.length > 0;
    return !this.#isBlocked;
  }

  /** FIN after the queued bytes. */
  end(): void {
    this.#isEnding = true;
    this.pump();
  }

  pump(): void {
    while (!this.#isClosed && this.#queue.length > 0 && this.#creditBytes > 0) {
      if (this.#port.isCongested) {
        this.#port.onceDrained(this);
        return;
      }
      const bytes = this.#queue.take(Math.min(maxPayloadBytes, this.#creditBytes));
      this.#creditBytes -= bytes.length;
      this.#sentBytes += bytes.length;
      this.#port.data(this.id, bytes);
    }
    if (this.#isClosed || this.#queue.length > 0) return;
    if (this.#isEnding && !this.#hasSentEnd) {
      this.#hasSentEnd = true;
      this.#port.control(FrameType.END, this.id, endRecord(this.#sentBytes));
      this.#closeIfEnded();
    }
    if (!this.#isBlocked) return;
    this.#isBlocked = false;
    this.sink?.drained();
  }

  /** Whether the sink waits for more bytes before it takes those that it has: credit is then given at once. */
  holds(isHeld: boolean): void {
    this.#isHeld = isHeld;
    if (isHeld) this.consumed(0);
  }

  /** Bytes of `data` have been taken. The window grows while its reader keeps up. */
  consumed(bytes: number): void {
    this.#heldBytes -= bytes;
    this.#ungrantedBytes += bytes;
    const leastBytes = this.#isHeld ? 1 : this.#windowBytes / 2;
    if (this.#isClosed || this.#hasReceivedEnd || this.#ungrantedBytes < leastBytes) return;
    const grownBytes = Math.min(2 * this.#windowBytes, windowMaxBytes);
    const moreBytes = grownBytes - this.#windowBytes;
    const grows = this.#heldBytes === 0 && moreBytes > 0 && this.#port.windows.tryAdd(moreBytes);
    if (grows) this.#windowBytes = grownBytes;
    const creditBytes = this.#ungrantedBytes + (grows ? moreBytes : 0);
    this.#ungrantedBytes = 0;
    this.#allowanceBytes += creditBytes;
    this.#port.control(FrameType.WINDOW, this.id, windowRecord(creditBytes));
  }

  // ---- Frames of the gateway

  receive(type: number, payload: Buffer): void {
    if (type === FrameType.RESET) {
      decodeEmpty(payload);
      this.close();
    } else if (type === FrameType.WINDOW) this.#receiveWindow(decodeCount(payload));
    else if (!this.#isOpened) throw new ProtocolError("a frame of a stream that is not open yet");
    else if (type === FrameType.DATA) this.#receiveData(payload);
    else if (type === FrameType.END) this.#receiveEnd(decodeTotal(payload));
    else throw new ProtocolError(`a frame of type ${type}`);
  }

  /** Without a word to the gateway. */
  close(hasEnded = false): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#queue.clear();
    this.#port.windows.free(this.#windowBytes - firstWindowBytes);
    this.#port.release(this, this.#allowanceBytes);
    this.sink?.closed(hasEnded);
  }

  #receiveData(bytes: Buffer): void {
    if (this.#hasReceivedEnd) throw new ProtocolError("data after the end of data");
    if (bytes.length === 0) throw new ProtocolError("an empty data frame");
    if (bytes.length > this.#allowanceBytes) throw new ProtocolError("data beyond the window");
    this.#allowanceBytes -= bytes.length;
    this.#receivedBytes += bytes.length;
    this.#heldBytes += bytes.length;
    if (this.sink === undefined) this.consumed(bytes.length);
    else this.sink.data(bytes);
  }

  #receiveEnd(totalBytes: number): void {
    if (this.#hasReceivedEnd || totalBytes !== this.#receivedBytes)
      throw new ProtocolError(`an end after ${totalBytes} bytes, but ${this.#receivedBytes} arrived`);
    this.#hasReceivedEnd = true;
    this.sink?.ended();
    this.#closeIfEnded();
  }

  #receiveWindow(creditBytes: number): void {
    if (creditBytes === 0 || this.#creditBytes + creditBytes > creditMaxBytes)
      throw new ProtocolError(`a grant of ${creditBytes} bytes`);
    this.#creditBytes += creditBytes;
    this.pump();
  }

  #closeIfEnded(): void {
    if (this.#hasSentEnd && this.#hasReceivedEnd) this.close(true);
  }

  #closeWith(type: number, payload: Uint8Array): void {
    if (this.#isClosed) return;
    this.#port.control(type, this.id, payload);
    this.close();
  }
}
