/** INPUT: the standard input of a background process, written by one client. */
import type { InputSink, ProcessInput, Selector } from "./agent.ts";
import type { Channel } from "./channel.ts";
import { decodeEmpty, decodeStartedEvent, selectorRequest, Verb } from "./protocol.ts";
import { ProtocolError } from "./records.ts";
import type { Stream, StreamHandler } from "./stream.ts";

const lingeringMaxBytes = 4 * 1024 * 1024;

/** Bytes that wait for programs after the clients who sent them have left, of one connection. */
export interface Lingering {
  bytes: number;
}

export class InputOfProcess implements ProcessInput, StreamHandler {
  readonly #stream: Stream;
  readonly #sink: InputSink;
  readonly #lingering: Lingering;
  /** Its part of `lingering`. */
  #lingeringBytes = 0;
  #isReleased = false;
  #onDrain: (() => void) | undefined;

  constructor(channel: Channel, selector: Selector, sink: InputSink, lingering: Lingering) {
    this.#sink = sink;
    this.#lingering = lingering;
    this.#stream = channel.open(Verb.INPUT, selectorRequest(Verb.INPUT, selector), this);
  }

  write(bytes: Uint8Array): boolean {
    return this.#stream.send(bytes);
  }

  onDrain(callback: () => void): void {
    this.#onDrain = callback;
  }

  endInput(): void {
    this.#stream.end();
  }

  release(): void {
    if (this.#isReleased) return;
    this.#isReleased = true;
    const { queuedBytes } = this.#stream;
    if (queuedBytes === 0 || this.#lingering.bytes + queuedBytes > lingeringMaxBytes) {
      this.#stream.cancel();
    } else {
      this.#lingeringBytes = queuedBytes;
      this.#lingering.bytes += queuedBytes;
    }
  }

  // ---- StreamHandler

  event(payload: Buffer): void {
    decodeStartedEvent(payload);
    if (!this.#isReleased) this.#sink.opened();
  }

  data(): void {
    throw new ProtocolError("data of a standard input");
  }

  drained(): void {
    if (this.#isReleased) {
      this.#endLingering();
      this.#stream.cancel();
    } else {
      this.#onDrain?.();
    }
  }

  result(payload: Buffer): void {
    decodeEmpty(payload);
    this.#endLingering();
    if (!this.#isReleased) this.#sink.ended();
  }

  failed(error: Error): void {
    this.#endLingering();
    if (!this.#isReleased) this.#sink.failed(error);
  }

  #endLingering(): void {
    this.#lingering.bytes -= this.#lingeringBytes;
    this.#lingeringBytes = 0;
  }
}
