/** A file being read out of the guest, no faster than its reader takes it. */
import { Readable } from "node:stream";
import type { Channel } from "./channel.ts";
import { decodeEmpty, decodeOpenedEvent, limits, Output, request, Verb } from "./protocol.ts";
import { ProtocolError } from "./records.ts";
import type { Stream, StreamHandler } from "./stream.ts";

export interface OpenedFile {
  size: number;
  body: Readable;
}

export class FileReading implements StreamHandler {
  readonly #stream: Stream;
  readonly #resolve: (file: OpenedFile) => void;
  readonly #reject: (error: Error) => void;
  #body: Readable | undefined;
  /** Bytes pushed into the body and not yet returned as credit. */
  #uncreditedBytes = 0;

  static of(channel: Channel, path: string, signal?: AbortSignal): Promise<OpenedFile> {
    return new Promise((resolve, reject) => {
      new FileReading(channel, path, resolve, reject).#stream.heed(signal);
    });
  }

  private constructor(
    channel: Channel,
    path: string,
    resolve: (file: OpenedFile) => void,
    reject: (error: Error) => void,
  ) {
    this.#resolve = resolve;
    this.#reject = reject;
    this.#stream = channel.open(Verb.READ, request(Verb.READ).str(path), this);
  }

  event(payload: Buffer): void {
    const { size } = decodeOpenedEvent(payload);
    if (this.#body) throw new ProtocolError("a file opened twice");
    this.#body = this.#makeBody();
    this.#resolve({ size, body: this.#body });
  }

  data(output: number, bytes: Buffer): void {
    if (output !== Output.MAIN || !this.#body) throw new ProtocolError("file content where none belongs");
    this.#uncreditedBytes += bytes.length;
    this.#body.push(Buffer.from(bytes));
  }

  /** Only here is the file known to be complete; until then its reader waits for the end. */
  result(payload: Buffer): void {
    decodeEmpty(payload);
    if (!this.#body || !this.#stream.ended) throw new ProtocolError("a file read without an end");
    this.#body.push(null);
  }

  failed(error: Error): void {
    if (this.#body) this.#body.destroy(error);
    else this.#reject(error);
  }

  #makeBody(): Readable {
    const body = new Readable({
      highWaterMark: limits.grantBytes,
      read: () => this.#credit(body),
      destroy: (error, done) => {
        this.#stream.cancel();
        done(error);
      },
    });
    // The reader may not be listening yet when the connection breaks; it finds the body destroyed.
    body.on("error", () => {});
    return body;
  }

  #credit(body: Readable): void {
    const takenBytes = this.#uncreditedBytes - body.readableLength;
    this.#uncreditedBytes -= takenBytes;
    this.#stream.consumed(takenBytes);
  }
}
