/**
 * Streams of processes: ForegroundStream for EXEC, EXEC_STDIN and EXEC_AS, OutputStream for ATTACH, Terminal for PTY and CONNECT,
 * exitOf for AWAIT.
 */
import { CapsuleError } from "../wire/errors.ts";
import type {
  Command,
  CommandStream,
  Exit,
  InputStream,
  OutputSink,
  PtyStream,
  RunningStream,
  Selector,
} from "./agent.ts";
import type { Channel } from "./channel.ts";
import { AgentFailure } from "./failure.ts";
import { screenRequest } from "./kept-records.ts";
import {
  DataChannel,
  decodeExit,
  decodeStartedEvent,
  execRequest,
  execVerb,
  ptyRequest,
  request,
  resizeEvent,
  selectorRequest,
  stopEvent,
  takenEvent,
  Verb,
} from "./protocol.ts";
import { ProtocolError, type RecordWriter } from "./records.ts";
import type { Stream, StreamHandler } from "./stream.ts";

type OutputName = "stdout" | "stderr" | "pty";

/** Names of DATA channels. A frame on a channel without a name is a protocol violation. */
export const commandOutputs: readonly (OutputName | undefined)[] = byChannel({
  [DataChannel.STDOUT]: "stdout",
  [DataChannel.STDERR]: "stderr",
});
export const terminalOutputs: readonly (OutputName | undefined)[] = byChannel({ [DataChannel.MAIN]: "pty" });

function byChannel(names: Record<number, OutputName>): readonly (OutputName | undefined)[] {
  return [names[0], names[1], names[2]];
}

export class OutputStream implements RunningStream, StreamHandler {
  protected readonly stream: Stream;
  readonly #sink: OutputSink;
  readonly #outputs: readonly (OutputName | undefined)[];
  #isStarted: boolean;
  #hasStartedEvent = false;

  constructor(
    channel: Channel,
    verb: Verb,
    request: RecordWriter,
    outputs: readonly (OutputName | undefined)[],
    sink: OutputSink,
  ) {
    this.#sink = sink;
    this.#isStarted = sink.started === undefined; // the request asks for no "started" event
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

  /** Also sent by agents of capsules made by an older daemon, which ignore that no event was requested. */
  event(payload: Buffer): void {
    const process = decodeStartedEvent(payload);
    if (this.#hasStartedEvent) throw new ProtocolError("a process that started twice");
    this.#hasStartedEvent = true;
    this.#isStarted = true;
    this.#sink.started?.(process);
  }

  data(output: number, bytes: Buffer): void {
    const name = this.#outputs[output];
    if (name === undefined || !this.#isStarted) throw new ProtocolError(`unexpected output on channel ${output}`);
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

/** An output stream with input. */
abstract class InteractiveStream extends OutputStream implements InputStream {
  #onDrain: (() => void) | undefined;

  write(bytes: Uint8Array): boolean {
    return this.stream.send(bytes);
  }

  onDrain(callback: () => void): void {
    this.#onDrain = callback;
  }

  drained(): void {
    this.#onDrain?.();
  }
}

export class ForegroundStream extends InteractiveStream implements CommandStream {
  static start(channel: Channel, command: Command, sink: OutputSink): ForegroundStream {
    const request = execRequest(command, sink.started === undefined ? "outcome" : "foreground");
    return new ForegroundStream(channel, execVerb(command), request, commandOutputs, sink);
  }

  endInput(): void {
    this.stream.end();
  }
}

/** Input queued for a terminal's program that does not read. A writer that exceeds it loses its stream. */
const maxQueuedInputBytes = 4 * 1024 * 1024;

export class Terminal extends InteractiveStream implements PtyStream {
  static start(channel: Channel, command: Command, size: { cols: number; rows: number }, sink: OutputSink): Terminal {
    return new Terminal(channel, Verb.PTY, ptyRequest(command, size), terminalOutputs, sink);
  }

  static connect(channel: Channel, tag: string, sink: OutputSink, isWhole: boolean): Terminal {
    if (isWhole) return new Terminal(channel, Verb.ATTACH_FROM, screenRequest(tag), terminalOutputs, sink);
    return new Terminal(channel, Verb.CONNECT, request(Verb.CONNECT).str(tag), terminalOutputs, sink);
  }

  override write(bytes: Uint8Array): boolean {
    if (this.stream.queuedBytes + bytes.length > maxQueuedInputBytes) {
      this.cancel();
      const refusal = "the terminal's program does not read its input";
      queueMicrotask(() => this.failed(new CapsuleError("too_large", refusal)));
      return false;
    }
    return super.write(bytes);
  }

  /** Detaches. The guest keeps output that was not consumed and replays it to the next client. */
  override cancel(): void {
    this.stream.event(takenEvent(this.stream.consumedBytes));
    super.cancel();
  }

  resize(cols: number, rows: number): void {
    this.stream.latestEvent("resize", resizeEvent(cols, rows));
  }
}

/**
 * How a background process ends, without its output. Agents of capsules made by an older daemon lack AWAIT; for them
 * this attaches to the process, which works only while it runs.
 */
export async function exitOf(channel: Channel, selector: Selector, signal?: AbortSignal): Promise<Exit> {
  try {
    return await channel.call(Verb.AWAIT, selectorRequest(Verb.AWAIT, selector), decodeExit, signal);
  } catch (error) {
    if (!(error instanceof AgentFailure && error.failure === "invalid")) throw error;
    return exitByAttaching(channel, selector, signal);
  }
}

function exitByAttaching(channel: Channel, selector: Selector, signal?: AbortSignal): Promise<Exit> {
  return new Promise((resolve, reject) => {
    const stream = new OutputStream(channel, Verb.ATTACH, selectorRequest(Verb.ATTACH, selector), commandOutputs, {
      started() {},
      output: (_, chunk) => stream.consumed(chunk.length),
      exited: (exit) => settle(() => resolve(exit)),
      failed: (error) => settle(() => reject(error)),
    });
    const abort = () => {
      stream.cancel();
      settle(() => reject(signal?.reason));
    };
    const settle = (end: () => void) => {
      signal?.removeEventListener("abort", abort);
      end();
    };
    if (signal?.aborted) abort();
    else signal?.addEventListener("abort", abort, { once: true });
  });
}
