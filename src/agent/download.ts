/** Downloads a file or kept output from the guest, no faster than its reader consumes it. */
import { Readable } from "node:stream";
import { CapsuleError } from "../wire/errors.ts";
import type { ArchiveRequest, ByteRange, KeptOutput, LogsRequest, Selector } from "./agent.ts";
import { partOf } from "./byte-range.ts";
import type { Channel } from "./channel.ts";
import { ChunkBuffer } from "./chunk-buffer.ts";
import { archiveRequest, rangeRequest } from "./file-requests.ts";
import { maxPayloadBytes } from "./frames.ts";
import { guestLimits } from "./guest-limits.ts";
import { decodeKeptEvent, logsRequest } from "./kept-records.ts";
import { DataChannel, decodeEmpty, decodeOpenedEvent, limits, request, Verb } from "./protocol.ts";
import { ProtocolError, type RecordWriter } from "./records.ts";
import type { Stream, StreamHandler } from "./stream.ts";

interface Head {
  size: number;
}

/** One verb whose answer is an event, unless `head` stands for it, the bytes and their end. */
interface DownloadVerb<Of extends Head> {
  verb: Verb;
  request: RecordWriter;
  decodeHead?: (payload: Buffer) => Of;
  head?: Of;
  /** More is a violation of the protocol. */
  maxBytes: number;
  /** How many of `size` bytes the answer has; fewer than those fail. Undefined: any number. */
  exactly?: (size: number) => number | undefined;
}

class Download<Of extends Head> implements StreamHandler {
  readonly #stream: Stream;
  readonly #decodeHead: ((payload: Buffer) => Of) | undefined;
  readonly #head: Of | undefined;
  #remainingBytes: number;
  readonly #exactly: (size: number) => number | undefined;
  #hasExactSize = false;
  readonly #resolve: (opened: Of & { body: Readable }) => void;
  readonly #reject: (error: Error) => void;
  #body: Content | undefined;
  /** It is longer than the window, which has not been widened yet. */
  #isLong = false;
  /** Bytes pushed into the body and not yet returned as credit. */
  #uncreditedBytes = 0;

  static of<Of extends Head>(
    channel: Channel,
    verb: DownloadVerb<Of>,
    signal?: AbortSignal,
  ): Promise<Of & { body: Readable }> {
    return new Promise((resolve, reject) => {
      new Download(channel, verb, resolve, reject).#stream.cancelOn(signal);
    });
  }

  private constructor(
    channel: Channel,
    { verb, request, decodeHead, head, maxBytes, exactly = () => undefined }: DownloadVerb<Of>,
    resolve: (opened: Of & { body: Readable }) => void,
    reject: (error: Error) => void,
  ) {
    this.#decodeHead = decodeHead;
    this.#head = head;
    this.#remainingBytes = maxBytes;
    this.#exactly = exactly;
    this.#resolve = resolve;
    this.#reject = reject;
    this.#stream = channel.open(verb, request, this);
  }

  event(payload: Buffer): void {
    const head = this.#decodeHead?.(payload);
    if (head === undefined || this.#body) throw new ProtocolError("a download opened twice");
    this.#open(head);
  }

  #open(head: Of): Content {
    this.#body = this.#makeBody();
    const exactBytes = this.#exactly(head.size);
    this.#hasExactSize = exactBytes !== undefined;
    this.#remainingBytes = exactBytes ?? this.#remainingBytes;
    this.#isLong = (exactBytes ?? head.size) > limits.windowBytes;
    this.#resolve({ ...head, body: this.#body });
    return this.#body;
  }

  data(output: number, bytes: Buffer): void {
    const body = this.#body ?? (this.#head && this.#open(this.#head));
    if (output !== DataChannel.MAIN || !body) throw new ProtocolError("unexpected content");
    this.#remainingBytes -= bytes.length;
    if (this.#remainingBytes < 0) throw new ProtocolError("too much content");
    this.#uncreditedBytes += bytes.length;
    body.add(bytes);
  }

  /** Ends the body only here, when it is known to be complete. */
  result(payload: Buffer): void {
    decodeEmpty(payload);
    if (!this.#body || !this.#stream.hasEnded) throw new ProtocolError("a result without an end of data");
    if (this.#hasExactSize && this.#remainingBytes > 0)
      this.#body.destroy(new CapsuleError("agent_error", "the file became shorter while a part of it was read"));
    else this.#body.finish();
  }

  failed(error: Error): void {
    if (this.#body) this.#body.destroy(error);
    else this.#reject(error);
  }

  #makeBody(): Content {
    const body = new Content({
      highWaterMark: limits.grantBytes,
      onRead: () => this.#credit(body),
      onDestroy: () => this.#stream.cancel(),
    });
    // Without a listener, an error before the reader attaches would end the daemon; the reader finds the body
    // destroyed.
    body.on("error", () => {});
    return body;
  }

  #credit(body: Content): void {
    const consumedBytes = this.#uncreditedBytes - body.bufferedBytes;
    if (consumedBytes === 0) return;
    this.#uncreditedBytes -= consumedBytes;
    this.#stream.consumed(consumedBytes);
    if (this.#isLong) {
      this.#isLong = false;
      this.#stream.widen();
    }
  }
}

export interface OpenFile {
  size: number;
  body: Readable;
}

export function downloadFile(
  channel: Channel,
  path: string,
  signal?: AbortSignal,
  range?: ByteRange,
): Promise<OpenFile> {
  const common = { decodeHead: decodeOpenedEvent, maxBytes: Number.POSITIVE_INFINITY };
  if (range === undefined) {
    return Download.of(channel, { ...common, verb: Verb.READ, request: request(Verb.READ).path(path) }, signal);
  }
  // A size of 0 may mean that it is unknown; then everything is sent.
  const exactly = (size: number) => (size === 0 ? undefined : partOf(range, size).count);
  return Download.of(
    channel,
    { ...common, verb: Verb.READ_RANGE, request: rangeRequest(path, range), exactly },
    signal,
  );
}

/** A tar, whose length is not known. Resolves with its first bytes. */
export async function downloadArchive(
  channel: Channel,
  asked: ArchiveRequest,
  signal?: AbortSignal,
): Promise<Readable> {
  const [head, maxBytes] = [{ size: Number.POSITIVE_INFINITY }, Number.POSITIVE_INFINITY];
  const verb = { verb: Verb.ARCHIVE, request: archiveRequest(asked), head, maxBytes };
  return (await Download.of(channel, verb, signal)).body;
}

/** The guest sends at most `guestLimits.keptOutputBytes`. */
export function downloadLog(
  channel: Channel,
  selector: Selector,
  asked: LogsRequest,
  signal?: AbortSignal,
): Promise<KeptOutput> {
  const request = logsRequest(selector, asked);
  const maxBytes = guestLimits.keptOutputBytes;
  return Download.of(channel, { verb: Verb.LOGS, request, decodeHead: decodeKeptEvent, maxBytes }, signal);
}

interface ContentOptions {
  highWaterMark: number;
  /** The reader may have consumed bytes. */
  onRead: () => void;
  /** The body has been destroyed, after its end or before. */
  onDestroy: () => void;
}

/** Shorter chunks get a buffer of their own length instead of a pooled one of 64 KiB. */
const pooledMinBytes = maxPayloadBytes / 2;
/** Buffers that a full window can occupy. */
const pooledMax = limits.windowBytes / pooledMinBytes;

/**
 * The received part of a download. With pipe(), buffers are reused, which saves a third to a half of the daemon's CPU time
 * per byte (measured with 2 GiB into an HTTP response). Reuse is safe because `write` calls back only after the
 * destination has passed the bytes to the kernel, and because no other reader of a piped body gets the buffers. Other
 * readers get copies.
 *
 * Small chunks are collected while the reader has bytes to read, so that memory is proportional to bytes and not to
 * frames.
 */
class Content extends Readable {
  readonly #onRead: () => void;
  readonly #pool: Buffer[] = [];
  /** Memory of this pool. Node's own pool, which small chunks come from, can be as long. */
  readonly #pooled = new WeakSet<ArrayBufferLike>();
  readonly #smallChunks = new ChunkBuffer();
  #isPiped = false;

  constructor({ highWaterMark, onRead, onDestroy }: ContentOptions) {
    super({
      highWaterMark,
      destroy: (error, done) => {
        onDestroy();
        done(error);
      },
    });
    this.#onRead = onRead;
  }

  /** Bytes that the reader has not consumed yet. */
  get bufferedBytes(): number {
    return this.readableLength + this.#smallChunks.length;
  }

  add(bytes: Buffer): void {
    if (bytes.length < pooledMinBytes && this.bufferedBytes > 0) {
      this.#smallChunks.add(bytes);
      if (this.#smallChunks.length >= pooledMinBytes) this.#pushSmallChunks();
      return;
    }
    this.#pushSmallChunks();
    const pooled = this.#isPiped && bytes.length >= pooledMinBytes ? this.#pooledBuffer() : undefined;
    if (pooled === undefined) this.push(Buffer.from(bytes));
    else this.push(pooled.subarray(0, bytes.copy(pooled)));
  }

  finish(): void {
    this.#pushSmallChunks();
    this.push(null);
  }

  /** Node calls this for every way of reading; in flowing mode with size 0 after bytes were emitted. */
  override read(size?: number): Buffer | null {
    if (this.readableLength === 0) this.#pushSmallChunks();
    const chunk = super.read(size) as Buffer | null;
    this.#onRead();
    return chunk;
  }

  override _read(): void {}

  override pipe<T extends NodeJS.WritableStream>(destination: T): T {
    this.#isPiped = true;
    this.on("data", (chunk: Buffer) => {
      const onWritten = (error?: Error | null) => {
        if (!error) this.#recycle(chunk);
      };
      if (!destination.write(chunk, onWritten)) this.pause();
    });
    destination.on("drain", () => this.resume());
    this.on("end", () => destination.end());
    return destination;
  }

  #pushSmallChunks(): void {
    if (this.#smallChunks.length > 0) this.push(this.#smallChunks.take());
  }

  #pooledBuffer(): Buffer {
    const pooled = this.#pool.pop() ?? Buffer.allocUnsafeSlow(maxPayloadBytes);
    this.#pooled.add(pooled.buffer);
    return pooled;
  }

  #recycle({ buffer }: Buffer): void {
    if (this.#pooled.has(buffer) && this.#pool.length < pooledMax) this.#pool.push(Buffer.from(buffer));
  }
}
