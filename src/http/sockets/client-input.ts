/** Input that a client sends to a program, no faster than the program reads it. */
import type { CommandStream, InputStream } from "../../agent/agent.ts";
import type { StdinMessage } from "../../wire/exec.ts";
import { bytesOfBase64 } from "../base64.ts";
import type { Connection } from "./connection.ts";

/**
 * Input buffered for a program that does not read. Without a buffer, a kill, resize or stop behind the input would not be
 * received.
 */
const bufferedInputMaxBytes = 1024 * 1024;

/** Reads no more messages of the client while much of its input is buffered. */
export class InputGate {
  readonly #connection: Pick<Connection, "pause">;
  readonly #stream: Pick<InputStream, "write">;
  #bufferedBytes = 0;

  constructor(connection: Pick<Connection, "pause" | "resume">, stream: Pick<InputStream, "write" | "onDrain">) {
    this.#connection = connection;
    this.#stream = stream;
    stream.onDrain(() => {
      this.#bufferedBytes = 0;
      connection.resume();
    });
  }

  write(bytes: Uint8Array): void {
    if (!this.#stream.write(bytes)) this.#bufferedBytes += bytes.length;
    if (this.#bufferedBytes > bufferedInputMaxBytes) this.#connection.pause();
  }
}

export interface StdinTarget {
  write(bytes: Uint8Array): void;
  endInput(): void;
}

export function stdinOf(connection: Connection, stream: CommandStream): StdinTarget {
  const gate = new InputGate(connection, stream);
  return { write: (bytes) => gate.write(bytes), endInput: () => stream.endInput() };
}

/** Takes the messages of one client's standard input. A message that cannot be used is told to `refuse`. */
export class ClientStdin {
  readonly #target: StdinTarget;
  readonly #refuse: (problem: string) => void;
  #hasEnded = false;

  constructor(target: StdinTarget, refuse: (problem: string) => void) {
    this.#target = target;
    this.#refuse = refuse;
  }

  take(message: StdinMessage): void {
    if (this.#hasEnded) {
      this.#refuse(`the message ${message.type} cannot be used: stdin_end was sent`);
    } else if (message.type === "stdin_end") {
      this.#hasEnded = true;
      this.#target.endInput();
    } else {
      const { data, encoding } = message;
      const bytes = encoding === "base64" ? bytesOfBase64(data) : bytesOfText(data);
      const form = encoding === "base64" ? "base64" : "encodable as UTF-8";
      if (bytes === undefined) this.#refuse(`the message stdin cannot be used: data must be ${form}`);
      else this.#target.write(bytes);
    }
  }
}

function bytesOfText(text: string): Buffer | undefined {
  return text.isWellFormed() ? Buffer.from(text) : undefined;
}
