/**
 * The messages of one WebSocket, handled in order of arrival. A large one costs as much as the body of a request, so it waits for a
 * turn of its team as a body does; small ones share the turns of their team. The client is not read while a message of it waits.
 * Messages of the last chunk that was read arrive nevertheless, and wait behind it.
 */
import { binaryUnits, type MessageTurns, textUnits, turnUnits } from "../access/message-turns.ts";
import { pieceMinBytes } from "../access/receive-budget.ts";
import type { Ending, TeamTurns } from "../access/team-turns.ts";

/** A smaller message costs less than a request without a body. */
export const largeMessageBytes = 16 * 1024;

export interface Message {
  data: Buffer;
  isBinary: boolean;
}

export interface MessageLineOptions {
  turns: Pick<TeamTurns, "enter">;
  messageTurns: Pick<MessageTurns, "enter">;
  teamId: string;
  /** The end of the client's connection, with which a waiting message leaves the line of its team. */
  ending: Ending;
  handle(message: Message): void;
  /** Called when the client is to be read no more, and when it is to be read again. */
  hold(): void;
  release(): void;
  /** Called when a message has been handled. */
  onHandled?(): void;
}

export class MessageLine {
  readonly #options: MessageLineOptions;
  /** The first one is being handled, or will be in a turn of its own. */
  #waiting: Message[] = [];
  #isHeld = false;
  #heldBytes = 0;
  #isClosed = false;
  #isFinishing = false;

  constructor(options: MessageLineOptions) {
    this.#options = options;
  }

  /** Memory of the messages that wait. */
  get heldBytes(): number {
    return this.#heldBytes;
  }

  take(message: Message): void {
    if (this.#isClosed) return;
    this.#waiting.push(message);
    this.#heldBytes += weightOf(message);
    if (this.#waiting.length === 1) this.#enter(message);
  }

  /**
   * For a client that has closed its WebSocket in order: what it sent before is handled, at most one message in a turn of the loop,
   * and then `done` is called, unless `close` is.
   */
  finish(done: () => void): void {
    this.#isFinishing = true;
    const { messageTurns, teamId, handle } = this.#options;
    const next = () => {
      if (this.#isClosed) return;
      const message = this.#waiting.shift();
      if (message === undefined) {
        done();
        return;
      }
      messageTurns.enter(teamId, unitsOf(message), undefined, () => {
        if (this.#isClosed) return;
        handle(message);
        this.#noteHandled(message);
        setImmediate(next);
      });
    };
    next();
  }

  /** Handles no further message. */
  close(): void {
    this.#isClosed = true;
    this.#waiting = [];
    this.#heldBytes = 0;
  }

  #enter(message: Message): void {
    if (this.#isFinishing) return;
    const { turns, messageTurns, teamId, ending, hold } = this.#options;
    const { length } = message.data;
    const goOn = () => this.#handle(message);
    if (length < largeMessageBytes) messageTurns.enter(teamId, unitsOf(message), ending, goOn);
    else turns.enter({ name: teamId }, ending, goOn, length);
    if (this.#waiting[0] !== message || this.#isHeld) return;
    this.#isHeld = true;
    hold();
  }

  #handle(message: Message): void {
    if (this.#isClosed || this.#isFinishing) return;
    this.#options.handle(message);
    this.#waiting.shift();
    this.#noteHandled(message);
    const [next] = this.#waiting;
    if (next !== undefined) {
      setImmediate(() => this.#enter(next));
    } else if (this.#isHeld) {
      this.#isHeld = false;
      this.#options.release();
    }
  }

  #noteHandled(message: Message): void {
    if (!this.#isClosed) this.#heldBytes -= weightOf(message);
    this.#options.onHandled?.();
  }
}

function weightOf({ data }: Message): number {
  return data.length + pieceMinBytes;
}

function unitsOf({ data, isBinary }: Message): number {
  if (data.length >= largeMessageBytes) return turnUnits;
  return isBinary ? binaryUnits : textUnits;
}
