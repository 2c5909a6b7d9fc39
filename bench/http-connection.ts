/**
 * A client of HTTP/1.1 with next to nothing in it: what it costs the client to ask is not the service's. One request at a
 * time on a connection that stays open; answers say how long they are.
 */
import { once } from "node:events";
import { connect, type Socket } from "node:net";

export interface Answer {
  status: number;
  text: string;
}

const headEnd = "\r\n\r\n";

export class HttpConnection {
  readonly #socket: Socket;
  readonly #host: string;
  #reading = new AnswerReader();
  #waiting: PromiseWithResolvers<Answer> | undefined;
  #isOver = false;

  static async open(url: string): Promise<HttpConnection> {
    const { hostname, port, host } = new URL(url);
    const socket = connect({ host: hostname, port: Number(port), noDelay: true });
    await once(socket, "connect");
    return new HttpConnection(socket, host);
  }

  private constructor(socket: Socket, host: string) {
    this.#socket = socket;
    this.#host = host;
    socket.on("data", (chunk) => this.#take(chunk));
    socket.on("error", (error) => this.#end(error));
    socket.on("close", () => this.#end(new Error("the server has closed the connection")));
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  /** One at a time. Rejects when the connection is lost before the answer is whole, or was before. */
  async ask(method: string, path: string, key: string, body: string | undefined): Promise<Answer> {
    if (this.#isOver) throw new Error("the connection is over");
    if (this.#waiting !== undefined) throw new Error("a connection asks one thing at a time");
    const type =
      body === undefined ? "" : `content-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n`;
    this.#waiting = Promise.withResolvers();
    this.#socket.write(
      `${method} ${path} HTTP/1.1\r\nhost: ${this.#host}\r\nx-api-key: ${key}\r\n${type}\r\n${body ?? ""}`,
    );
    return this.#waiting.promise;
  }

  close(): void {
    this.#socket.destroy();
  }

  #take(chunk: Buffer): void {
    try {
      const answer = this.#reading.take(chunk);
      if (answer === undefined) return;
      const waiting = this.#waiting;
      if (waiting === undefined) throw new Error("the server answers what nobody has asked");
      this.#reading = new AnswerReader();
      this.#waiting = undefined;
      waiting.resolve(answer);
    } catch (error) {
      this.#end(error as Error);
      this.#socket.destroy();
    }
  }

  #end(error: Error): void {
    this.#isOver = true;
    this.#waiting?.reject(error);
    this.#waiting = undefined;
  }
}

/** One answer, piece by piece. */
export class AnswerReader {
  readonly #pieces: Buffer[] = [];
  #bytes = 0;
  #head: { status: number; endsAt: number; startsAt: number } | undefined;

  /** The answer, with its last piece. Throws when it does not say how long it is. */
  take(piece: Buffer): Answer | undefined {
    this.#pieces.push(piece);
    this.#bytes += piece.length;
    this.#head ??= headOf(Buffer.concat(this.#pieces));
    if (this.#head === undefined || this.#bytes < this.#head.endsAt) return undefined;
    const { status, startsAt, endsAt } = this.#head;
    return { status, text: Buffer.concat(this.#pieces).toString("utf8", startsAt, endsAt) };
  }
}

function headOf(bytes: Buffer): { status: number; startsAt: number; endsAt: number } | undefined {
  const headBytes = bytes.indexOf(headEnd);
  if (headBytes === -1) return undefined;
  const head = bytes.toString("latin1", 0, headBytes);
  const status = Number(/^HTTP\/1\.1 (\d{3})/.exec(head)?.[1]);
  const length = /^content-length: *(\d+)\r?$/im.exec(head)?.[1];
  if (length === undefined && status !== 204) throw new Error(`an answer does not say how long it is:\n${head}`);
  const startsAt = headBytes + headEnd.length;
  return { status, startsAt, endsAt: startsAt + Number(length ?? 0) };
}
