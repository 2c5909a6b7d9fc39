/** A WebSocket client for tests that stores received messages in order and the close frame. */
import assert from "node:assert/strict";
import type { IncomingMessage } from "node:http";
import { type RawData, WebSocket } from "ws";
import type { TestCapsule } from "../client.ts";
import { within } from "../wait-for.ts";

const deadlineMs = 120_000;

// biome-ignore lint/suspicious/noExplicitAny: tests read the fields that they expect
export type Message = any;

export interface Output {
  stdout: string;
  stderr: string;
  exitCode: number | undefined;
  closeCode: number;
}

export class TestSocket implements AsyncDisposable {
  readonly socket: WebSocket;
  /** The server's close frame. */
  readonly closed: Promise<{ code: number; reason: string }>;
  /** The server's first JSON ping. */
  readonly pinged: Promise<void>;
  readonly #messages: Message[] = [];
  #wake = () => {};
  #isClosed = false;

  /** `suffix` as in `exec/stream`; `headers` by default the client's key. Throws when the upgrade is refused. */
  static async open(
    { client, path }: TestCapsule,
    suffix: string,
    headers: Record<string, string> = { "x-api-key": client.key },
  ): Promise<TestSocket> {
    const url = new URL(`${path}/${suffix}`, client.url);
    url.protocol = "ws:";
    const socket = new WebSocket(url, { headers, perMessageDeflate: false });
    const test = new TestSocket(socket, (message) => client.contract.checkMessage(url.pathname, message));
    socket.once("upgrade", ({ statusCode, headers }: IncomingMessage) =>
      client.contract.check({ method: "GET", path: url.pathname, status: statusCode!, headers, body: undefined }),
    );
    await new Promise<void>((resolve, reject) => {
      socket.once("open", resolve);
      socket.once("error", reject);
    });
    socket.on("error", () => {}); // a close event follows
    return test;
  }

  private constructor(socket: WebSocket, check: (message: Message) => void) {
    this.socket = socket;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.pinged = promise;
    socket.on("message", (data: RawData, isBinary: boolean) => {
      assert.equal(isBinary, false, "WebSocket messages are JSON text messages");
      const message: Message = JSON.parse(data.toString());
      check(message);
      if (message.type === "ping") resolve();
      else this.#messages.push(message);
      this.#wake();
    });
    this.closed = new Promise((resolve) => {
      socket.on("close", (code, reason) => {
        this.#isClosed = true;
        this.#wake();
        resolve({ code, reason: reason.toString() });
      });
    });
  }

  say(message: unknown): void {
    this.socket.send(typeof message === "string" ? message : JSON.stringify(message));
  }

  /** The next message; throws unless it is of this type. */
  async next(type: string): Promise<Message> {
    await this.#until(() => this.#messages.length > 0);
    const message = this.#messages.shift();
    assert.equal(message.type, type, JSON.stringify(message));
    return message;
  }

  /** The next message of any type. */
  async any(): Promise<Message> {
    await this.#until(() => this.#messages.length > 0);
    return this.#messages.shift();
  }

  /** All remaining messages until the close. */
  async rest(): Promise<Message[]> {
    await within("the socket is closed", this.closed, { deadlineMs });
    return this.#messages.splice(0);
  }

  /** A command's whole output and its end. */
  async output(): Promise<Output> {
    const messages = await this.rest();
    const { code } = await this.closed;
    const text = (type: string) =>
      messages
        .filter((each) => each.type === type)
        .map((each) => each.data)
        .join("");
    const exit = messages.find((each) => each.type === "exit");
    if (exit !== undefined) assert.equal(messages.at(-1), exit, "nothing comes after the exit");
    return { stdout: text("stdout"), stderr: text("stderr"), exitCode: exit?.exit_code, closeCode: code };
  }

  /** Waits until the terminal's output matches; removes and returns the output up to the end of the match. */
  async prints(pattern: RegExp): Promise<string> {
    let end = -1;
    let text = "";
    await this.#until(
      () => {
        text = this.#terminalText();
        const match = pattern.exec(text);
        end = match === null ? -1 : match.index + match[0].length;
        return end >= 0;
      },
      () => `${pattern} in ${JSON.stringify(text.slice(-2_000))}`,
    );
    const others = this.#messages.filter((each) => each.type !== "output");
    const remaining = Buffer.from(text.slice(end), "latin1").toString("base64");
    this.#messages.splice(
      0,
      this.#messages.length,
      ...(remaining === "" ? [] : [{ type: "output", data: remaining }]),
      ...others,
    );
    return text.slice(0, end);
  }

  /** Keystrokes. */
  type(text: string | Buffer): void {
    this.say({ type: "input", data: Buffer.from(text as string).toString("base64") });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#isClosed) this.socket.terminate();
    await this.closed;
  }

  #terminalText(): string {
    const chunks = this.#messages
      .filter((each) => each.type === "output")
      .map((each) => Buffer.from(each.data, "base64"));
    return Buffer.concat(chunks).toString("latin1");
  }

  async #until(holds: () => boolean, what = () => "another message"): Promise<void> {
    const isMet = async () => {
      while (!holds()) {
        if (this.#isClosed) throw new Error(`the socket was closed without ${what()}`);
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
      }
    };
    await within(what, isMet(), { deadlineMs });
  }
}
