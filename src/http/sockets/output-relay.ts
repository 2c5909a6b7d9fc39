/**
 * A process's output as exec stream and attach tell it. Credit goes back to the guest only when a chunk has left for
 * the client: a slow reader slows the process down, and nothing is dropped or piled up.
 */
import type { Exit, OutputSink, RunningStream, Started } from "../../agent/agent.ts";
import { closeCodes } from "../../wire/close-codes.ts";
import type { ExecServerMessage } from "../../wire/exec-messages.ts";
import type { Connection } from "./connection.ts";
import { JoinedOutput } from "./joined-output.ts";

export type OutputEncoding = "utf-8" | "base64";
type Channel = "stdout" | "stderr";

export class OutputRelay implements OutputSink {
  readonly #line: Connection;
  readonly #texts: Record<Channel, ChunkText>;
  readonly #joined: JoinedOutput<Channel>;
  #stream: RunningStream | undefined;

  constructor(line: Connection, encoding: OutputEncoding) {
    this.#line = line;
    this.#texts = { stdout: new ChunkText(encoding), stderr: new ChunkText(encoding) };
    this.#joined = new JoinedOutput(line, (channel, bytes) => this.#tell(channel, bytes));
  }

  /** The stream that the output comes from; dropped with the line. */
  follow(stream: RunningStream): void {
    this.#stream = stream;
    if (!this.#line.isOpen) stream.cancel();
  }

  stop(): void {
    this.#stream?.stop();
  }

  drop(): void {
    this.#stream?.cancel();
  }

  started({ pid }: Started): void {
    this.#send({ type: "start", pid });
  }

  output(channel: Channel | "pty", chunk: Uint8Array): void {
    if (channel !== "pty") this.#joined.add(channel, chunk);
  }

  exited({ exitCode }: Exit): void {
    this.#joined.flush();
    for (const type of ["stdout", "stderr"] as const) {
      const data = this.#texts[type].rest();
      if (data !== "") this.#send({ type, data });
    }
    // Not before it has left: a close waits only so long for a slow reader.
    this.#send({ type: "exit", exit_code: exitCode }, () => this.#line.close(closeCodes.done, "the process ended"));
  }

  failed(error: Error): void {
    this.#line.failWith(error);
  }

  #tell(channel: Channel, bytes: Buffer): void {
    const { length } = bytes;
    const data = this.#texts[channel].of(bytes);
    if (data === "") this.#stream?.consumed(length);
    else this.#send({ type: channel, data }, () => this.#stream?.consumed(length));
  }

  #send(message: ExecServerMessage, left?: () => void): void {
    this.#line.send(message, left);
  }
}

/** Chunks as text. A character that a chunk's end cuts in two waits for the rest of it. */
class ChunkText {
  readonly #decoder: InstanceType<typeof TextDecoder> | undefined;

  constructor(encoding: OutputEncoding) {
    this.#decoder = encoding === "utf-8" ? new TextDecoder("utf-8", { ignoreBOM: true }) : undefined;
  }

  of(chunk: Buffer): string {
    if (this.#decoder === undefined) return chunk.toString("base64");
    return this.#decoder.decode(chunk, { stream: true });
  }

  rest(): string {
    return this.#decoder?.decode() ?? "";
  }
}
