/**
 * The standard input of a background process, for an attached client. It is opened by the client's first message: most clients
 * send none, and agents of earlier releases have no verb for it.
 */
import type { InputSink, ProcessInput } from "../../agent/agent.ts";
import type { CapsuleError } from "../../wire/errors.ts";
import { InputGate, type StdinTarget } from "./client-input.ts";
import type { Connection } from "./connection.ts";

export class AttachedStdin implements StdinTarget, InputSink {
  readonly #connection: Connection;
  readonly #openInput: (sink: InputSink) => ProcessInput;
  #open: { input: ProcessInput; gate: InputGate } | undefined;
  /** Messages since it was opened, until the guest has confirmed that. */
  #unconfirmed = 0;
  #isConfirmed = false;

  constructor(connection: Connection, openInput: (sink: InputSink) => ProcessInput) {
    this.#connection = connection;
    this.#openInput = openInput;
  }

  write(bytes: Uint8Array): void {
    this.#use().gate.write(bytes);
  }

  endInput(): void {
    this.#use().input.endInput();
  }

  /** The client has left. */
  release(): void {
    this.#open?.input.release();
  }

  #use(): { input: ProcessInput; gate: InputGate } {
    if (this.#open === undefined) {
      const input = this.#openInput(this);
      this.#open = { input, gate: new InputGate(this.#connection, input) };
      this.#unconfirmed = 0;
      this.#isConfirmed = false;
    }
    if (!this.#isConfirmed) this.#unconfirmed++;
    return this.#open;
  }

  // ---- InputSink

  opened(): void {
    this.#isConfirmed = true;
  }

  /** By another client, or with the process. The next message finds out. */
  ended(): void {
    this.#close();
  }

  /** Input of a process that is gone is thrown away. */
  failed(error: Error): void {
    const { code } = error as CapsuleError;
    const refused = code === "not_found" || code === "agent_error" ? 0 : Math.max(1, this.#unconfirmed);
    for (let i = 0; i < refused; i++) this.#connection.send({ type: "error", data: error.message, code });
    this.#close();
  }

  #close(): void {
    this.#open = undefined;
    this.#connection.resume();
  }
}
