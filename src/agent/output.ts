/** A process's output as it comes off a stream: what EXEC, ATTACH, PTY and CONNECT have in common. */
import type { OutputSink, RunningStream } from "./agent.ts";
import type { Channel } from "./channel.ts";
import { decodeExit, decodeStartedEvent, Output, stopEvent, type Verb } from "./protocol.ts";
import { ProtocolError, type RecordWriter } from "./records.ts";
import type { Stream, StreamHandler } from "./stream.ts";

type OutputName = "stdout" | "stderr" | "pty";

/** What each DATA channel is called; a channel without a name is a breach. */
export const commandOutputs: readonly (OutputName | undefined)[] = withOutputs({
  [Output.STDOUT]: "stdout",
  [Output.STDERR]: "stderr",
});
export const terminalOutputs: readonly (OutputName | undefined)[] = withOutputs({ [Output.MAIN]: "pty" });

function withOutputs(names: Record<number, OutputName>): readonly (OutputName | undefined)[] {
  return [names[0], names[1], names[2]];
}

export class OutputStream implements RunningStream, StreamHandler {
  protected readonly stream: Stream;
  readonly #sink: OutputSink;
  readonly #outputs: readonly (OutputName | undefined)[];
  #isStarted: boolean;
  #isTold = false;

  constructor(
    channel: Channel,
    verb: Verb,
    request: RecordWriter,
    outputs: readonly (OutputName | undefined)[],
    sink: OutputSink,
  ) {
    this.#sink = sink;
    this.#isStarted = sink.started === undefined; // it was not asked for
    this.#outputs = outputs;
    this.stream = channel.open(verb, request, this);
  }

  consumed(bytes: number): void {
    this.stream.consumed(bytes);
  }

  stop(): void {
    this.stream.latestEvent("stop", stopEvent);
  }

  cancel(): void {
    this.stream.cancel();
  }

  /** Agents of capsules older than this daemon tell it unasked. */
  event(payload: Buffer): void {
    const process = decodeStartedEvent(payload);
    if (this.#isTold) throw new ProtocolError("a process that started twice");
    this.#isTold = true;
    this.#isStarted = true;
    this.#sink.started?.(process);
  }

  data(output: number, bytes: Buffer): void {
    const name = this.#outputs[output];
    if (name === undefined || !this.#isStarted) throw new ProtocolError(`output ${output} of a process that has none`);
    this.#sink.output(name, bytes);
  }

  result(payload: Buffer): void {
    const exit = decodeExit(payload);
    if (!this.#isStarted) throw new ProtocolError("an exit without a start");
    this.#sink.exited(exit);
  }

  failed(error: Error): void {
    this.#sink.failed(error);
  }
}
