/** A connection of one stream, which keeps what the stream sends. Tests grant credit by `Stream.receiveWindow`. */
import { limits, Verb, windowRecord } from "../../src/agent/protocol.ts";
import { Stream, type StreamTransport } from "../../src/agent/stream.ts";

export class FakeTransport implements StreamTransport {
  congested = false;
  /** The sent views, not copies: later changes of their bytes would show. */
  readonly frames: Uint8Array[] = [];
  sentBytes = 0;
  /** Bytes that the stream may still send. */
  creditBytes: number = limits.windowBytes;
  onDrained = () => {};
  readonly stream: Stream;
  #isWaiting = false;

  constructor() {
    const handler = { event() {}, data() {}, result() {}, failed() {}, drained: () => this.onDrained() };
    this.stream = new Stream(1, Verb.INPUT, handler, this);
  }

  /** Uses the credit up that every stream begins with. */
  static withoutCredit(): FakeTransport {
    const transport = new FakeTransport();
    transport.stream.send(Buffer.alloc(limits.windowBytes));
    transport.take();
    return transport;
  }

  grant(bytes: number): void {
    this.creditBytes += bytes;
    this.stream.receiveWindow(windowRecord(bytes));
  }

  decongest(): void {
    this.congested = false;
    if (!this.#isWaiting) return;
    this.#isWaiting = false;
    this.stream.pump();
  }

  /** The frames since the last call. */
  take(): Uint8Array[] {
    return this.frames.splice(0);
  }

  // ---- StreamTransport

  control(): void {}

  data(_stream: number, bytes: Uint8Array): void {
    this.frames.push(bytes);
    this.sentBytes += bytes.length;
    this.creditBytes -= bytes.length;
  }

  onceDrained(): void {
    this.#isWaiting = true;
  }

  release(): void {}
}
