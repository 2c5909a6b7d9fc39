/** A file being read out of the guest, no faster than its reader takes it. */
import { Readable } from "node:stream";
import type { Channel } from "./channel.ts";
import { maxPayloadBytes } from "./frames.ts";
import { ChunkBuffer } from "./growing-bytes.ts";
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
  #body: Content | undefined;
  /** Longer than the window, which is not yet wide. */
  #isLong = false;
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
    this.#isLong = size > limits.windowBytes;
    this.#resolve({ size, body: this.#body });
  }

  data(output: number, bytes: Buffer): void {
    if (output !== Output.MAIN || !this.#body) throw new ProtocolError("file content where none belongs");
    this.#uncreditedBytes += bytes.length;
    this.#body.add(bytes);
  }

  /** Only here is the file known to be complete; until then its reader waits for the end. */
  result(payload: Buffer): void {
    decodeEmpty(payload);
    if (!this.#body || !this.#stream.ended) throw new ProtocolError("a file read without an end");
    this.#body.finish();
  }

  failed(error: Error): void {
    if (this.#body) this.#body.destroy(error);
    else this.#reject(error);
  }

  #makeBody(): Content {
    const body = new Content({
      highWaterMark: limits.grantBytes,
      taken: () => this.#credit(body),
      left: () => this.#stream.cancel(),
    });
    // The reader may not be listening yet when the connection breaks; it finds the body destroyed.
    body.on("error", () => {});
    return body;
  }

  #credit(body: Content): void {
    const takenBytes = this.#uncreditedBytes - body.waitingBytes;
    if (takenBytes === 0) return;
    this.#uncreditedBytes -= takenBytes;
    this.#stream.consumed(takenBytes);
    if (this.#isLong) {
      this.#isLong = false;
      this.#stream.widen();
    }
  }
}

interface ContentOptions {
  highWaterMark: number;
  /** Its reader may have taken bytes. */
  taken: () => void;
  /** It is over, to its end or not. */
  left: () => void;
}

/** Below it a buffer of full size would be a waste; so many of those the window has room for. */
const pooledMinBytes = maxPayloadBytes / 2;
const pooledMax = limits.windowBytes / pooledMinBytes;

/**
 * What has come of a file. Where it is piped to, each buffer is used again as soon as its bytes have left: a gigabyte
 * takes a dozen buffers then, and no work of the collector. Whoever reads it otherwise keeps what he gets.
 *
 * A guest that sends single bytes is owed no buffer for each: while its reader has something to read, crumbs are put
 * together, so that memory follows the bytes and not the frames.
 */
class Content extends Readable {
  readonly #taken: () => void;
  readonly #pool: Buffer[] = [];
  readonly #crumbs = new ChunkBuffer();
  #isPiped = false;

  constructor({ highWaterMark, taken, left }: ContentOptions) {
    super({
      highWaterMark,
      destroy: (error, done) => {
        left();
        done(error);
      },
    });
    this.#taken = taken;
  }

  /** Added and not yet taken by the reader. */
  get waitingBytes(): number {
    return this.readableLength + this.#crumbs.length;
  }

  add(bytes: Buffer): void {
    if (bytes.length < pooledMinBytes && this.waitingBytes > 0) {
      this.#crumbs.add(bytes);
      if (this.#crumbs.length >= pooledMinBytes) this.#pushCrumbs();
      return;
    }
    this.#pushCrumbs();
    const pooled = this.#isPiped && bytes.length >= pooledMinBytes ? this.#take() : undefined;
    if (pooled === undefined) this.push(Buffer.from(bytes));
    else this.push(pooled.subarray(0, bytes.copy(pooled)));
  }

  finish(): void {
    this.#pushCrumbs();
    this.push(null);
  }

  /** However it is read, its bytes go through here, or are followed by a call of this with size 0. */
  override read(size?: number): Buffer | null {
    if (this.readableLength === 0) this.#pushCrumbs();
    const chunk = super.read(size) as Buffer | null;
    this.#taken();
    return chunk;
  }

  override _read(): void {}

  override pipe<T extends NodeJS.WritableStream>(destination: T): T {
    this.#isPiped = true;
    this.on("data", (chunk: Buffer) => {
      const left = (error?: Error | null) => {
        if (!error) this.#giveBack(chunk);
      };
      if (!destination.write(chunk, left)) this.pause();
    });
    destination.on("drain", () => this.resume());
    this.on("end", () => destination.end());
    return destination;
  }

  #pushCrumbs(): void {
    if (this.#crumbs.length > 0) this.push(this.#crumbs.take());
  }

  #take(): Buffer {
    return this.#pool.pop() ?? Buffer.allocUnsafeSlow(maxPayloadBytes);
  }

  #giveBack({ buffer }: Buffer): void {
    if (buffer.byteLength === maxPayloadBytes && this.#pool.length < pooledMax) this.#pool.push(Buffer.from(buffer));
  }
}
