/**
 * One accepted WebSocket: received messages, sent messages with a callback when the operating system has them, and one
 * end. Whichever side closes it, the client gets a close frame, and `onClosed` is called exactly once.
 */
import type { FastifyBaseLogger } from "fastify";
import type { RawData, WebSocket } from "ws";
import { AgentFailure } from "../../agent/failure.ts";
import type { RunEnd } from "../../capsules/runs.ts";
import { CapsuleError, closeCodes } from "../../wire/errors.ts";
import type { AnswerCharge } from "../access/answer-budget.ts";
import type { MessageTurns } from "../access/message-turns.ts";
import type { Ending, TeamTurns } from "../access/team-turns.ts";
import { hasTooManyValues, jsonValuesMax } from "../json-values.ts";
import { describeError } from "../log.ts";
import { onCloseAnswered } from "./close-frame.ts";
import { type Message, MessageLine } from "./message-line.ts";
import { unfinishedBytes } from "./unfinished.ts";

/** The code of a WebSocket whose client sent no close frame. */
const brokenOff = 1006;
const keepaliveMs = 30_000;
/** While a client is not read, only a failed ping shows that it has left. */
const pausedPingMs = 5_000;
const commandNotFound = "command_not_found";
/** Flow control keeps output far below this. Only error messages to a client that does not read can exceed it. */
export const unsentMaxBytes = 8 * 1024 * 1024;
/** Time for a client to read why it is refused, while nothing of it is read. */
const refusedMs = 1_000;
/** When a run ends, its agent fails too, before or after. An agent error waits this long for the end of the run. */
const runEndGraceMs = 2_000;

export interface ConnectionHandlers {
  onText(text: string): void;
  /** A binary frame. */
  onBinary(bytes: Buffer): void;
  onClosed(): void;
}

/**
 * Fields of an error message besides its text: a terminal's errors are marked fatal, and have a code only where the command is not
 * found; the others can have any. `silent`: none is sent, since the messages are a client's own bytes.
 */
export type ErrorMark = { fatal: true } | { silent: true } | Record<string, never>;

export interface ConnectionOptions {
  socket: WebSocket;
  /** The connection below the WebSocket. */
  transport: Ending;
  mark: ErrorMark;
  log: FastifyBaseLogger;
  teamId: string;
  turns: TeamTurns;
  messageTurns: MessageTurns;
  /** For what is held of messages that have not been handled. */
  charge: AnswerCharge;
}

/** Why a client is not read: its program does not read its input, or a message of it waits for a turn. */
type Hold = "input" | "turn";

export class Connection {
  readonly #socket: WebSocket;
  readonly #mark: ErrorMark;
  readonly #log: FastifyBaseLogger;
  readonly #keepalive: NodeJS.Timeout;
  #pausedPings: NodeJS.Timeout | undefined;
  #handlers: ConnectionHandlers | undefined;
  readonly #messages: MessageLine;
  readonly #holds = new Set<Hold>();
  #isOpen = true;
  #isFinishing = false;
  #isResponsive = true;
  #failTimer: NodeJS.Timeout | undefined;
  #onDrained: (() => void) | undefined;
  /** ws holds nothing of it any more. */
  #isGone = false;
  readonly #charge: AnswerCharge;
  #chargedBytes = 0;
  readonly #closed = Promise.withResolvers<void>();

  constructor({ socket, transport, mark, log, charge, ...line }: ConnectionOptions) {
    this.#socket = socket;
    this.#log = log;
    this.#mark = mark;
    this.#charge = charge;
    this.#keepalive = setInterval(() => this.#checkAlive(), keepaliveMs);
    socket.on("pong", () => {
      this.#isResponsive = true;
    });
    this.#messages = new MessageLine({
      ...{ ...line, ending: transport },
      handle: (message) => this.#handle(message),
      hold: () => this.pause("turn"),
      release: () => this.resume("turn"),
      onHandled: () => this.weigh(),
    });
    socket.on("message", (data: RawData, isBinary: boolean) => {
      this.#isResponsive = true;
      this.#messages.take({ data: data as Buffer, isBinary });
      this.weigh();
    });
    socket.on("error", () => {}); // "close" follows
    onCloseAnswered(socket, () => this.#finish());
    socket.on("close", (code) => {
      this.#isGone = true;
      if (code === brokenOff) this.#end();
      else this.#finish();
      this.#releaseGone();
    });
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Resolves after `onClosed` of the handlers. */
  get closed(): Promise<void> {
    return this.#closed.promise;
  }

  handle(handlers: ConnectionHandlers): void {
    this.#handlers = handlers;
    if (!this.#isOpen) handlers.onClosed();
  }

  /** Sent bytes wait for the operating system: the client reads more slowly than the server sends. */
  get isBehind(): boolean {
    return this.#socket.bufferedAmount > 0;
  }

  /** Call only while `isBehind`, with one callback at a time: it is called when all is sent, unless the socket closes. */
  onceDrained(callback: () => void): void {
    this.#onDrained = callback;
  }

  /** `onWritten` is called when the operating system has the message; never if the socket closes before. */
  send(message: object, onWritten?: () => void): void {
    this.sendData(JSON.stringify(message), onWritten);
  }

  /** Text as a text message, bytes as a binary one. */
  sendData(data: string | Uint8Array, onWritten?: () => void): void {
    if (!this.#isOpen) return;
    this.#socket.send(data, (error) => {
      if (error == null) this.#noteWritten(onWritten);
    });
    if (this.#socket.bufferedAmount > unsentMaxBytes)
      this.close(closeCodes.tooSlow, "you do not read what you are sent");
  }

  /** Sends an error message, then closes. */
  fail(text: string, closeCode: number, code?: string): void {
    if (!("silent" in this.#mark))
      this.send({ type: "error", data: text, ...this.#mark, ...(code === undefined ? {} : { code }) });
    this.close(closeCode, text);
  }

  /** For a process that could not be started, or whose exit is unknown. */
  failWith(error: Error): void {
    if (error instanceof AgentFailure) {
      const { message, failure, code } = error;
      if (failure === "slow_reader") this.fail(message, closeCodes.tooSlow);
      else this.fail(message, closeCodes.done, failure === commandNotFound ? failure : code);
      return;
    }
    if (!(error instanceof CapsuleError)) {
      this.#log.error({ error: describeError(error) }, "socket failed");
      this.fail("something broke inside the service", closeCodes.broken);
      return;
    }
    const { message, code } = error;
    switch (code) {
      case "invalid_request":
        this.fail(message, closeCodes.badMessage, code);
        return;
      case "conflict": // the agent, saved by an older service, lacks the verb
        this.fail(message, closeCodes.done, code);
        return;
      case "agent_error":
        this.#failTimer ??= setTimeout(() => this.fail(message, closeCodes.broken), runEndGraceMs);
        return;
      default:
        this.fail(message, closeCodes.broken);
    }
  }

  runEnded(end: RunEnd): void {
    const [text, code] = runEndCloses[end];
    if (end === "moved") {
      this.close(code, text); // no error: its client connects again
      return;
    }
    this.fail(text, code);
  }

  close(code: number, reason: string): void {
    if (!this.#isOpen) return;
    this.#socket.resume(); // a paused socket would not receive the client's close frame
    this.#socket.close(code, cutReason(reason));
    this.#end();
  }

  /** Without a close frame: for a client that does not respond. */
  terminate(): void {
    this.#socket.terminate();
    this.#end();
  }

  /** Reads nothing of the client until each hold is released by `resume`. */
  pause(hold: Hold = "input"): void {
    this.#holds.add(hold);
    if (!this.#isOpen || this.#socket.isPaused) return;
    this.#socket.pause();
    this.#pausedPings = setInterval(() => {
      if (!this.isBehind) this.#ping();
    }, pausedPingMs);
  }

  resume(hold: Hold = "input"): void {
    this.#holds.delete(hold);
    if (!this.#isOpen || !this.#socket.isPaused || this.#holds.size > 0) return;
    clearInterval(this.#pausedPings);
    this.#isResponsive = true; // its pong may be among the unread bytes
    this.#socket.resume();
  }

  /** Charges the team for what is held of its messages; call when a part of one has arrived. Beyond the budget the socket is closed. */
  weigh(): void {
    const bytes = unfinishedBytes(this.#socket) + this.#messages.heldBytes;
    try {
      this.#charge.add(bytes - this.#chargedBytes);
      this.#chargedBytes = bytes;
    } catch {
      this.close(closeCodes.busy, "the team's unfinished messages and bodies are as large as they may be");
      this.#socket.pause(); // no further byte is held
      setTimeout(() => this.#socket.terminate(), refusedMs).unref();
    }
  }

  /** When neither ws nor the line holds anything. */
  #releaseGone(): void {
    if (this.#isGone && !this.#isOpen) this.#charge.release();
  }

  #noteWritten(onWritten?: () => void): void {
    onWritten?.();
    if (this.isBehind || !this.#isOpen) return;
    const onDrained = this.#onDrained;
    this.#onDrained = undefined;
    onDrained?.();
  }

  #handle({ data, isBinary }: Message): void {
    try {
      if (isBinary) this.#handlers?.onBinary(data);
      else if (hasTooManyValues(data))
        this.fail(`a message has more than ${jsonValuesMax} values`, closeCodes.badMessage);
      else this.#handlers?.onText(data.toString());
    } catch (error) {
      this.failWith(error as Error);
    }
  }

  /**
   * Pings an idle client and terminates one that has not answered the last ping. While bytes wait to be sent or received,
   * TCP itself detects a dead client, and a slow one may answer late.
   */
  #checkAlive(): void {
    if (this.isBehind || this.#socket.isPaused) return;
    if (!this.#isResponsive) {
      this.terminate();
      return;
    }
    this.#isResponsive = false;
    this.#ping();
  }

  #ping(): void {
    this.#socket.ping(undefined, undefined, (error) => {
      if (error == null) this.#noteWritten();
    });
  }

  /** The client has closed it in order. */
  #finish(): void {
    if (this.#isFinishing) return;
    this.#isFinishing = true;
    this.#messages.finish(() => this.#end());
  }

  #end(): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#messages.close();
    clearInterval(this.#keepalive);
    clearInterval(this.#pausedPings);
    clearTimeout(this.#failTimer);
    this.#handlers?.onClosed();
    this.#closed.resolve();
    this.#releaseGone();
  }
}

const runEndCloses: Record<RunEnd, [string, number]> = {
  paused: ["the capsule was paused", closeCodes.paused],
  moved: ["the capsule is being moved to another host", closeCodes.stopping],
  destroyed: ["the capsule was destroyed", closeCodes.destroyed],
  stopped: ["the capsule was stopped, or its guest powered off", closeCodes.broken],
  rebooted: ["the capsule's guest rebooted", closeCodes.broken],
  error: ["the capsule was lost", closeCodes.broken],
};

/** A close frame holds at most 123 bytes of reason. */
function cutReason(reason: string): string {
  const text = reason.replace(/[^\x20-\x7e]/g, "?");
  return text.length <= 123 ? text : `${text.slice(0, 120)}...`;
}
