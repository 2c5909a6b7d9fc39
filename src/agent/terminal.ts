/** A pseudo-terminal session as one client of it sees it. */
import { CapsuleError } from "../wire/errors.ts";
import type { Command, OutputSink, PtyStream } from "./agent.ts";
import type { Channel } from "./channel.ts";
import { OutputStream, terminalOutputs } from "./output.ts";
import { ptyRequest, request, resizeEvent, takenEvent, Verb } from "./protocol.ts";

/** Input that may wait for a program that does not read; a writer that goes on past it is cut off. */
const maxQueuedInputBytes = 4 * 1024 * 1024;

export class Terminal extends OutputStream implements PtyStream {
  #onDrain: (() => void) | undefined;

  static start(channel: Channel, command: Command, size: { cols: number; rows: number }, sink: OutputSink): Terminal {
    return new Terminal(channel, Verb.PTY, ptyRequest(command, size), terminalOutputs, sink);
  }

  static rejoin(channel: Channel, tag: string, sink: OutputSink): Terminal {
    return new Terminal(channel, Verb.CONNECT, request(Verb.CONNECT).str(tag), terminalOutputs, sink);
  }

  write(bytes: Uint8Array): boolean {
    if (this.stream.queuedBytes + bytes.length > maxQueuedInputBytes) {
      this.cancel();
      queueMicrotask(() =>
        this.failed(new CapsuleError("too_large", "the terminal's program does not read its input")),
      );
      return false;
    }
    return this.stream.send(bytes);
  }

  /** Detaches. What has not been consumed is kept in the guest for the next client. */
  override cancel(): void {
    this.stream.event(takenEvent(this.stream.consumedBytes));
    super.cancel();
  }

  onDrain(callback: () => void): void {
    this.#onDrain = callback;
  }

  resize(cols: number, rows: number): void {
    this.stream.latestEvent("resize", resizeEvent(cols, rows));
  }

  drained(): void {
    this.#onDrain?.();
  }
}
