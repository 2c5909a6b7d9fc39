/** Answers of many records (LIST, PROCESSES), decoded while they arrive and limited in items and bytes. */
import { CapsuleError } from "../wire/errors.ts";
import type { Channel } from "./channel.ts";
import { DataChannel, decodeCount, type Verb } from "./protocol.ts";
import { ProtocolError, RecordReader, type RecordWriter, ShortRecord } from "./records.ts";
import type { Stream, StreamHandler } from "./stream.ts";

export interface ListingBounds {
  items: number;
  bytes: number;
}

export class Listing<T> implements StreamHandler {
  readonly #stream: Stream;
  readonly #readItem: (fields: RecordReader) => T;
  readonly #bounds: ListingBounds;
  readonly #resolve: (items: T[]) => void;
  readonly #reject: (error: Error) => void;
  readonly #items: T[] = [];
  #receivedBytes = 0;
  /** Its first `#heldBytes` are received and not yet decoded: the start of an incomplete item. */
  #held = Buffer.alloc(0);
  #heldBytes = 0;
  #retryAtBytes = 0;

  /** Rejects with `invalid_request` when there is more than the bounds allow. */
  static of<T>(
    channel: Channel,
    verb: Verb,
    request: RecordWriter,
    readItem: (fields: RecordReader) => T,
    bounds: ListingBounds,
    signal?: AbortSignal,
  ): Promise<T[]> {
    return new Promise((resolve, reject) => {
      new Listing(channel, verb, request, readItem, bounds, resolve, reject).#stream.cancelOn(signal);
    });
  }

  private constructor(
    channel: Channel,
    verb: Verb,
    request: RecordWriter,
    readItem: (fields: RecordReader) => T,
    bounds: ListingBounds,
    resolve: (items: T[]) => void,
    reject: (error: Error) => void,
  ) {
    this.#readItem = readItem;
    this.#bounds = bounds;
    this.#resolve = resolve;
    this.#reject = reject;
    this.#stream = channel.open(verb, request, this);
  }

  event(): void {
    throw new ProtocolError("an event in a listing");
  }

  data(output: number, bytes: Buffer): void {
    if (output !== DataChannel.MAIN) throw new ProtocolError(`a listing on channel ${output}`);
    this.#receivedBytes += bytes.length;
    if (this.#receivedBytes > this.#bounds.bytes) {
      this.#refuse(`${this.#bounds.bytes} bytes`);
      return;
    }
    this.#append(bytes);
    if (this.#heldBytes >= this.#retryAtBytes) this.#decodeItems();
    if (this.#items.length > this.#bounds.items) this.#refuse(`${this.#bounds.items} entries`);
    else this.#stream.consumed(bytes.length);
  }

  result(payload: Buffer): void {
    const count = decodeCount(payload);
    this.#decodeItems();
    if (this.#heldBytes > 0 || this.#items.length !== count) {
      throw new ProtocolError(`a listing of ${count} items, of which ${this.#items.length} arrived`);
    }
    this.#resolve(this.#items);
  }

  failed(error: Error): void {
    this.#reject(error);
  }

  #refuse(bound: string): void {
    this.#stream.cancel();
    this.#reject(new CapsuleError("invalid_request", `the listing has more than ${bound}`));
  }

  #append(bytes: Buffer): void {
    const neededBytes = this.#heldBytes + bytes.length;
    if (neededBytes > this.#held.length) {
      const larger = Buffer.allocUnsafe(Math.max(neededBytes, 2 * this.#held.length));
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
    let decodedBytes = 0;
    try {
      while (decodedBytes < this.#heldBytes && this.#items.length <= this.#bounds.items) {
        this.#items.push(this.#readItem(fields));
        decodedBytes = fields.position;
      }
    } catch (error) {
      if (!(error instanceof ShortRecord)) throw error;
    }
    this.#held.copyWithin(0, decodedBytes, this.#heldBytes);
    this.#heldBytes -= decodedBytes;
    this.#retryAtBytes = 2 * this.#heldBytes;
  }
}
