/** Answers of many records (LIST, PROCESSES), decoded while they arrive and limited in items and bytes. */
import { CapsuleError } from "../wire/errors.ts";
import type { ListingSink } from "./agent.ts";
import type { Channel } from "./channel.ts";
import { DataChannel, decodeCount, type Verb } from "./protocol.ts";
import { ProtocolError, RecordReader, type RecordWriter, ShortRecord } from "./records.ts";
import type { Stream, StreamHandler } from "./stream.ts";

export interface ListingBounds {
  items: number;
  bytes: number;
}

/** How the items are read, how many there may be, and where they go. */
export interface ListingDecoder<T> {
  readItem: (fields: RecordReader) => T;
  bounds: ListingBounds;
  sink: ListingSink<T>;
}

/** Most bytes held that the sink is not asked for: a frame of the protocol. */
const unreservedBytes = 64 * 1024;

export class Listing<T> implements StreamHandler {
  readonly #stream: Stream;
  readonly #decoder: ListingDecoder<T>;
  readonly #resolve: () => void;
  readonly #reject: (error: unknown) => void;
  #items = 0;
  #receivedBytes = 0;
  /** Its first `#heldBytes` are received and not yet decoded: the start of an incomplete item. */
  #held = Buffer.alloc(0);
  #heldBytes = 0;
  #retryAtBytes = 0;

  /** Rejects with `invalid_request` when there is more than the bounds allow, and with an error that the sink throws. */
  static of<T>(
    channel: Channel,
    verb: Verb,
    request: RecordWriter,
    decoder: ListingDecoder<T>,
    signal?: AbortSignal,
  ): Promise<void> {
    return new Promise((resolve, reject) => {
      new Listing(channel, verb, request, decoder, { resolve, reject }).#stream.cancelOn(signal);
    });
  }

  private constructor(
    channel: Channel,
    verb: Verb,
    request: RecordWriter,
    decoder: ListingDecoder<T>,
    { resolve, reject }: { resolve: () => void; reject: (error: unknown) => void },
  ) {
    this.#decoder = decoder;
    this.#resolve = resolve;
    this.#reject = reject;
    this.#stream = channel.open(verb, request, this);
  }

  event(): void {
    throw new ProtocolError("an event in a listing");
  }

  data(output: number, bytes: Buffer): void {
    if (output !== DataChannel.MAIN) throw new ProtocolError(`a listing on channel ${output}`);
    const { bounds } = this.#decoder;
    this.#receivedBytes += bytes.length;
    if (this.#receivedBytes > bounds.bytes) {
      this.#end(tooLong(`${bounds.bytes} bytes`));
      return;
    }
    try {
      this.#append(bytes);
      if (this.#heldBytes >= this.#retryAtBytes) this.#decodeItems();
    } catch (error) {
      if (!(error instanceof SinkError)) throw error;
      this.#end(error.cause);
      return;
    }
    if (this.#items > bounds.items) this.#end(tooLong(`${bounds.items} entries`));
    else this.#stream.consumed(bytes.length);
  }

  result(payload: Buffer): void {
    const count = decodeCount(payload);
    try {
      this.#decodeItems();
    } catch (error) {
      if (!(error instanceof SinkError)) throw error;
      this.#reject(error.cause);
      return;
    }
    if (this.#heldBytes > 0 || this.#items !== count) {
      throw new ProtocolError(`a listing of ${count} items, of which ${this.#items} arrived`);
    }
    this.#resolve();
  }

  failed(error: Error): void {
    this.#reject(error);
  }

  #end(reason: unknown): void {
    this.#stream.cancel();
    this.#reject(reason);
  }

  #append(bytes: Buffer): void {
    const neededBytes = this.#heldBytes + bytes.length;
    if (neededBytes > this.#held.length) {
      const size = Math.max(neededBytes, 2 * this.#held.length);
      if (size > unreservedBytes) this.#tell((sink) => sink.reserve(size - this.#held.length));
      const larger = Buffer.allocUnsafe(size);
      this.#held.copy(larger, 0, 0, this.#heldBytes);
      this.#held = larger;
    }
    this.#held.set(bytes, this.#heldBytes);
    this.#heldBytes = neededBytes;
  }

  /**
   * Decodes complete items. An incomplete one is retried when its bytes have doubled, so that a huge item costs linear
   * time.
   */
  #decodeItems(): void {
    const fields = new RecordReader(this.#held.subarray(0, this.#heldBytes));
    const { readItem, bounds } = this.#decoder;
    let decodedBytes = 0;
    try {
      while (decodedBytes < this.#heldBytes && this.#items <= bounds.items) {
        const item = readItem(fields);
        decodedBytes = fields.position;
        this.#items += 1;
        if (this.#items <= bounds.items) this.#tell((sink) => sink.item(item));
      }
    } catch (error) {
      if (!(error instanceof ShortRecord)) throw error;
    }
    this.#held.copyWithin(0, decodedBytes, this.#heldBytes);
    this.#heldBytes -= decodedBytes;
    this.#retryAtBytes = 2 * this.#heldBytes;
  }

  #tell(call: (sink: ListingSink<T>) => void): void {
    try {
      call(this.#decoder.sink);
    } catch (error) {
      throw new SinkError(error);
    }
  }
}

/** Tells an error of the sink from one of the decoder, which ends the connection. */
class SinkError extends Error {
  constructor(cause: unknown) {
    super("the listing's receiver failed", { cause });
  }
}

function tooLong(bound: string): CapsuleError {
  return new CapsuleError("invalid_request", `the listing has more than ${bound}`);
}
