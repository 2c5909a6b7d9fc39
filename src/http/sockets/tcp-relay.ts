/**
 * The bytes of one connection to a port, between its client's WebSocket and the guest. Neither is read faster than the other reads.
 * Bytes from the guest share the turns of the team's uploads (access/chunk-turns.ts).
 */
import type { Duplex } from "node:stream";
import { ConnectionReset } from "../../agent/dial.ts";
import { closeCodes } from "../../wire/errors.ts";
import { endMessage } from "../../wire/port.ts";
import type { Connection, ConnectionHandlers } from "./connection.ts";

/** How often bytes that have moved are told as activity. */
const activityMs = 1_000;

export interface TcpRelayOptions {
  connection: Connection;
  guest: Duplex;
  /** Resolves when so many bytes may be sent, or the client is gone; undefined: at once. */
  enterTurn: (bytes: number) => Promise<void> | undefined;
  /** Called at most once a second, after bytes have moved. */
  onActivity: () => void;
}

export class TcpRelay implements ConnectionHandlers {
  readonly #connection: Connection;
  readonly #guest: Duplex;
  readonly #enterTurn: TcpRelayOptions["enterTurn"];
  /** Bytes of the guest wait for it. */
  #turn: Promise<void> | undefined;
  readonly #activity: NodeJS.Timeout;
  #hasMoved = false;
  #isEnding = false;
  #isOver = false;

  constructor({ connection, guest, enterTurn, onActivity }: TcpRelayOptions) {
    this.#connection = connection;
    this.#guest = guest;
    this.#enterTurn = enterTurn;
    this.#activity = setInterval(() => {
      if (!this.#hasMoved) return;
      this.#hasMoved = false;
      onActivity();
    }, activityMs);
    guest.on("data", (bytes: Buffer) => this.#fromGuest(bytes));
    guest.on("end", () =>
      this.#behindBytes(() => {
        connection.sendData(endMessage);
        this.#settle();
      }),
    );
    guest.on("finish", () => this.#behindBytes(() => this.#settle()));
    guest.on("drain", () => connection.resume());
    guest.on("error", (error) => this.#behindBytes(() => this.#failed(error)));
    guest.on("close", () => this.#behindBytes(() => this.#failed(undefined)));
  }

  onText(text: string): void {
    if (text !== endMessage) this.#refuse("a text message is `end`, and nothing else");
    else if (!this.#isEnding) {
      this.#isEnding = true;
      this.#guest.end();
    }
  }

  onBinary(bytes: Buffer): void {
    if (this.#isEnding) {
      this.#refuse("bytes after the end");
      return;
    }
    this.#hasMoved = true;
    if (bytes.length > 0 && !this.#guest.write(bytes)) this.#connection.pause();
  }

  onClosed(): void {
    clearInterval(this.#activity);
    this.#isOver = true;
    this.#guest.destroy();
  }

  #fromGuest(bytes: Buffer): void {
    this.#hasMoved = true;
    const turn = this.#enterTurn(bytes.length);
    if (turn === undefined) {
      this.#send(bytes);
      return;
    }
    this.#guest.pause();
    this.#turn = turn.then(() => {
      this.#turn = undefined;
      this.#send(bytes);
    });
  }

  #send(bytes: Buffer): void {
    this.#connection.sendData(bytes);
    if (this.#isOver) return;
    if (!this.#connection.isBehind) {
      this.#guest.resume();
      return;
    }
    this.#guest.pause();
    this.#connection.onceDrained(() => this.#guest.resume());
  }

  /** Calls `next` behind the bytes that wait for their turn; at once, if none do. */
  #behindBytes(next: () => void): void {
    if (this.#turn === undefined) next();
    else void this.#turn.then(next);
  }

  /** Both directions have ended. */
  #settle(): void {
    const { readableEnded, writableFinished } = this.#guest;
    if (readableEnded && writableFinished) this.#connection.close(closeCodes.done, "both directions have ended");
  }

  #failed(error: Error | undefined): void {
    if (this.#isOver) return;
    this.#settle();
    if (this.#isOver) return;
    if (error === undefined || error instanceof ConnectionReset)
      this.#connection.close(closeCodes.broken, "the connection was reset");
    else this.#connection.failWith(error);
  }

  #refuse(why: string): void {
    this.#connection.close(closeCodes.unacceptable, why);
  }
}
