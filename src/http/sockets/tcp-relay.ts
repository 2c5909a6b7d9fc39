/** The bytes of one connection to a port, between its client's WebSocket and the guest. Neither is read faster than the other reads. */
import type { Duplex } from "node:stream";
import { ConnectionReset } from "../../agent/dial.ts";
import { closeCodes } from "../../wire/errors.ts";
import { endMessage } from "../../wire/port.ts";
import type { Connection, ConnectionHandlers } from "./connection.ts";

/** How often bytes that have moved are told as activity. */
const activityMs = 1_000;

export class TcpRelay implements ConnectionHandlers {
  readonly #connection: Connection;
  readonly #guest: Duplex;
  readonly #activity: NodeJS.Timeout;
  #hasMoved = false;
  #isEnding = false;
  #isOver = false;

  /** `onActivity` is called at most once a second, after bytes have moved. */
  constructor(connection: Connection, guest: Duplex, onActivity: () => void) {
    this.#connection = connection;
    this.#guest = guest;
    this.#activity = setInterval(() => {
      if (!this.#hasMoved) return;
      this.#hasMoved = false;
      onActivity();
    }, activityMs);
    guest.on("data", (bytes: Buffer) => this.#fromGuest(bytes));
    guest.on("end", () => {
      connection.sendData(endMessage);
      this.#settle();
    });
    guest.on("finish", () => this.#settle());
    guest.on("drain", () => connection.resume());
    guest.on("error", (error) => this.#failed(error));
    guest.on("close", () => this.#failed(undefined));
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
    this.#connection.sendData(bytes);
    if (!this.#connection.isBehind || this.#isOver) return;
    this.#guest.pause();
    this.#connection.onceDrained(() => this.#guest.resume());
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
