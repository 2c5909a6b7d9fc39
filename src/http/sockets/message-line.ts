/**
 * The messages of one WebSocket, handled in order of arrival. A large one costs as much as the body of a request, so it waits for a
 * turn of its team as a body does; meanwhile the client is not read. Messages of the last chunk that was read arrive nevertheless,
 * and wait behind it.
 */
import type { Ending, TeamTurns } from "../access/team-turns.ts";

/** A smaller message costs no more than a request without a body. */
export const largeMessageBytes = 16 * 1024;

export interface Message {
  data: Buffer;
  isBinary: boolean;
}

export interface MessageLineOptions {
  turns: Pick<TeamTurns, "enter">;
  teamId: string;
  /** The end of the client's connection, with which a waiting message leaves the line of its team. */
  ending: Ending;
  handle(message: Message): void;
  /** Called when the client is to be read no more, and when it is to be read again. */
  hold(): void;
  release(): void;
}

export class MessageLine {
  readonly #options: MessageLineOptions;
  /** The first one is being handled, or will be in a turn of its own. */
  #waiting: Message[] = [];
  #isHeld = false;
  #isClosed = false;
  #isFinishing = false;

  constructor(options: MessageLineOptions) {
    this.#options = options;
  }

  take(message: Message): void {
    if (this.#isClosed) return;
    this.#waiting.push(message);
    if (this.#waiting.length === 1) this.#enter(message);
  }

  /**
   * For a client that has closed its WebSocket in order: what it sent before is handled, one message in a turn of the loop, and then
   * `done` is called, unless `close` is.
   */
  finish(done: () => void): void {
    this.#isFinishing = true;
    const next = () => {
      if (this.#isClosed) return;
      const message = this.#waiting.shift();
      if (message === undefined) {
        done();
        return;
      }
      this.#options.handle(message);
      setImmediate(next);
    };
    next();
  }

  /** Handles no further message. */
  close(): void {
    this.#isClosed = true;
    this.#waiting = [];
  }

  #enter(message: Message): void {
    if (this.#isFinishing) return;
    const { turns, teamId, ending, hold } = this.#options;
    const { length } = message.data;
    if (length < largeMessageBytes) {
      this.#handle(message);
      return;
    }
    turns.enter({ name: teamId }, ending, () => this.#handle(message), length);
    if (this.#waiting[0] !== message || this.#isHeld) return;
    this.#isHeld = true;
    hold();
  }

  #handle(message: Message): void {
    if (this.#isClosed || this.#isFinishing) return;
    this.#options.handle(message);
    this.#waiting.shift();
    const [next] = this.#waiting;
    if (next !== undefined) {
      setImmediate(() => this.#enter(next));
    } else if (this.#isHeld) {
      this.#isHeld = false;
      this.#options.release();
    }
  }
}
