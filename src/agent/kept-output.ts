/** The stream of ATTACH_FROM: kept output of a process from an offset on, then live output, without a gap. */
import type { OutputSink, OutputStart, Selector } from "./agent.ts";
import type { Channel } from "./channel.ts";
import { attachFromRequest, decodePositionEvent } from "./kept-records.ts";
import { commandOutputs, OutputStream } from "./process-streams.ts";
import { Verb } from "./protocol.ts";
import { ProtocolError } from "./records.ts";

/**
 * All output follows in the order of its arrival, so that the offset of each piece is that of the first one and the bytes
 * since.
 */
export class LoggedStream extends OutputStream {
  readonly #sink: OutputSink;
  readonly #leastOffset: number;
  #isStarted = false;
  #isPositioned = false;

  static open(channel: Channel, selector: Selector, start: OutputStart, sink: OutputSink): LoggedStream {
    return new LoggedStream(channel, selector, start, sink);
  }

  private constructor(channel: Channel, selector: Selector, start: OutputStart, sink: OutputSink) {
    super(channel, Verb.ATTACH_FROM, attachFromRequest(selector, start), commandOutputs, sink);
    this.#sink = sink;
    this.#leastOffset = typeof start === "number" ? start : 0;
  }

  override event(payload: Buffer): void {
    if (!this.#isStarted) {
      super.event(payload);
      this.#isStarted = true;
      return;
    }
    const { offset } = decodePositionEvent(payload);
    if (this.#isPositioned) throw new ProtocolError("output with two positions");
    if (offset < this.#leastOffset) throw new ProtocolError(`output from byte ${offset} on, which was not asked for`);
    this.#isPositioned = true;
    this.#sink.positioned?.(offset);
  }

  override data(output: number, bytes: Buffer): void {
    if (!this.#isPositioned) throw new ProtocolError("output without a position");
    super.data(output, bytes);
  }

  override result(payload: Buffer): void {
    if (!this.#isPositioned) throw new ProtocolError("an exit without a position of the output");
    super.result(payload);
  }
}
