/**
 * One accepted WebSocket, as a conversation sees it: messages in, messages out with word when they have left, one end.
 * Whoever ends it, the client gets a close frame, and `onGone` is called exactly once.
 */
import type { FastifyBaseLogger } from "fastify";
import type { RawData, WebSocket } from "ws";
import { AgentFailure } from "../../agent/failure.ts";
import { closeCodes } from "../../wire/close-codes.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { describeError } from "../log.ts";
import type { RunEnd } from "../services.ts";

const keepaliveMs = 30_000;
/** Flow control keeps output far below this; only a client that provokes errors and reads none gets here. */
const bufferedMaxBytes = 8 * 1024 * 1024;
/** A capsule that ends takes its agent along; the news of the two may come in either order. */
const endNewsMs = 2_000;

export interface ConnectionHandlers {
  onText(text: string): void;
  /** A frame that is no text. */
  onBinary(): void;
  onGone(): void;
}

/** What an error message says beyond its text: a terminal's errors are marked fatal. */
export type ErrorMark = { fatal: true } | Record<string, never>;

export class Connection {
  readonly #socket: WebSocket;
  readonly #mark: ErrorMark;
  readonly #log: FastifyBaseLogger;
  readonly #keepalive: NodeJS.Timeout;
  #handlers: ConnectionHandlers | undefined;
  #isOpen = true;
  #heardOf = true;
  #waitingForEnd: NodeJS.Timeout | undefined;
  #caughtUp: (() => void) | undefined;

  constructor(socket: WebSocket, mark: ErrorMark, log: FastifyBaseLogger) {
    this.#socket = socket;
    this.#log = log;
    this.#mark = mark;
    this.#keepalive = setInterval(() => this.#checkAlive(), keepaliveMs);
    socket.on("pong", () => {
      this.#heardOf = true;
    });
    socket.on("message", (data: RawData, isBinary: boolean) => this.#receive(data, isBinary));
    socket.on("error", () => {}); // the close that follows says all
    socket.on("close", () => this.#over());
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  handle(handlers: ConnectionHandlers): void {
    this.#handlers = handlers;
    if (!this.#isOpen) handlers.onGone();
  }

  /** The operating system has not taken everything yet: the client reads more slowly than we send. */
  get isBehind(): boolean {
    return this.#socket.bufferedAmount > 0;
  }

  /** One callback at a time, only while the line is behind: called when it no longer is, unless it closes before. */
  onceCaughtUp(callback: () => void): void {
    this.#caughtUp = callback;
  }

  /** `left` is called when the message is in the hands of the operating system; never when the line broke before. */
  send(message: object, left?: () => void): void {
    if (!this.#isOpen) return;
    this.#socket.send(JSON.stringify(message), (error) => {
      if (error == null) this.#noteWritten(left);
    });
    if (this.#socket.bufferedAmount > bufferedMaxBytes)
      this.close(closeCodes.tooSlow, "you do not read what you are sent");
  }

  /** Tells the error, then closes. */
  fail(text: string, code: number): void {
    this.send({ type: "error", data: text, ...this.#mark });
    this.close(code, text);
  }

  /** What became of the process is not known, or it never was one. */
  failWith(error: Error): void {
    if (error instanceof AgentFailure) {
      this.fail(error.message, error.failure === "slow_reader" ? closeCodes.tooSlow : closeCodes.done);
      return;
    }
    if (!(error instanceof CapsuleError)) {
      this.#log.error({ error: describeError(error) }, "socket failed");
      this.fail("something broke inside the service", closeCodes.broken);
      return;
    }
    const fail = () => this.fail(error.message, closeCodes.broken);
    if (error.code === "agent_error") this.#waitingForEnd ??= setTimeout(fail, endNewsMs);
    else fail();
  }

  /** The capsule's present life is over. */
  runEnded(end: RunEnd): void {
    const [text, code] = endings[end];
    this.fail(text, code);
  }

  close(code: number, reason: string): void {
    if (!this.#isOpen) return;
    this.#socket.resume(); // or the client's own close frame would never be read
    this.#socket.close(code, cutReason(reason));
    this.#over();
  }

  /** Without a word: for clients that are no longer there to read one. */
  terminate(): void {
    this.#socket.terminate();
    this.#over();
  }

  /** Reads no more messages until `resume`. */
  pause(): void {
    if (this.#isOpen) this.#socket.pause();
  }

  resume(): void {
    if (!this.#isOpen || !this.#socket.isPaused) return;
    this.#heardOf = true; // its pong may be among what was not read
    this.#socket.resume();
  }

  #noteWritten(left?: () => void): void {
    left?.();
    if (this.isBehind || !this.#isOpen) return;
    const caughtUp = this.#caughtUp;
    this.#caughtUp = undefined;
    caughtUp?.();
  }

  #receive(data: RawData, isBinary: boolean): void {
    this.#heardOf = true;
    if (!this.#isOpen) return;
    try {
      if (isBinary) this.#handlers?.onBinary();
      else this.#handlers?.onText(data.toString());
    } catch (error) {
      this.failWith(error as Error);
    }
  }

  /**
   * A client that has unread output may be slow, and TCP knows whether it is there, as it does of one that we do not
   * read; a silent one must answer.
   */
  #checkAlive(): void {
    if (this.isBehind || this.#socket.isPaused) return;
    if (!this.#heardOf) {
      this.terminate();
      return;
    }
    this.#heardOf = false;
    this.#socket.ping(undefined, undefined, (error) => {
      if (error == null) this.#noteWritten();
    });
  }

  #over(): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    clearInterval(this.#keepalive);
    clearTimeout(this.#waitingForEnd);
    this.#handlers?.onGone();
  }
}

const endings: Record<RunEnd, [string, number]> = {
  paused: ["the capsule was paused", closeCodes.paused],
  destroyed: ["the capsule was destroyed", closeCodes.destroyed],
  stopped: ["the capsule's guest powered off", closeCodes.broken],
  error: ["the capsule was lost", closeCodes.broken],
};

/** A close frame has room for 123 bytes of reason. */
function cutReason(reason: string): string {
  const text = reason.replace(/[^\x20-\x7e]/g, "?");
  return text.length <= 123 ? text : `${text.slice(0, 120)}...`;
}
