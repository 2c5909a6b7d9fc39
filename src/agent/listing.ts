/** An answer of many records (LIST, PROCESSES), taken apart while it arrives and bounded in items and bytes. */
import { CapsuleError } from "../wire/errors.ts";
import type { Channel } from "./channel.ts";
import { decodeCount, Output, type Verb } from "./protocol.ts";
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
  /** The beginning of an item whose end has not arrived: the first `#heldBytes` of the buffer. */
  #held = Buffer.alloc(0);
  #heldBytes = 0;
  #tryAgainAtBytes = 0;

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
      new Listing(channel, verb, request, readItem, bounds, resolve, reject).#stream.heed(signal);
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
    if (output !== Output.MAIN) throw new ProtocolError(`a listing on channel ${output}`);
    this.#receivedBytes += bytes.length;
    if (this.#receivedBytes > this.#bounds.bytes) {
      this.#refuse(`${this.#bounds.bytes} bytes`);
      return;
    }
    this.#hold(bytes);
    if (this.#heldBytes >= this.#tryAgainAtBytes) this.#takeItems();
    if (this.#items.length > this.#bounds.items) this.#refuse(`${this.#bounds.items} entries`);
    else this.#stream.consumed(bytes.length);
  }

  result(payload: Buffer): void {
    const count = decodeCount(payload);
    this.#takeItems();
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

  #hold(bytes: Buffer): void {
    const neededBytes = this.#heldBytes + bytes.length;
    if (neededBytes > this.#held.length) {
      const larger = Buffer.allocUnsafe(Math.max(neededBytes, 2 * this.#held.length));
      this.#held.copy(larger, 0, 0, this.#heldBytes);
      this.#held = larger;
    }
    this.#held.set(bytes, this.#heldBytes);
    this.#heldBytes = neededBytes;
  }

  /** An item that came up short is tried again at twice its bytes, so a huge one costs linear time. */
  #takeItems(): void {
    const fields = new RecordReader(this.#held.subarray(0, this.#heldBytes));
    let taken = 0;
    try {
      while (taken < this.#heldBytes && this.#items.length <= this.#bounds.items) {
        this.#items.push(this.#readItem(fields));
        taken = fields.position;
      }
    } catch (error) {
      if (!(error instanceof ShortRecord)) throw error;
    }
    this.#held.copyWithin(0, taken, this.#heldBytes);
    this.#heldBytes -= taken;
    this.#tryAgainAtBytes = 2 * this.#heldBytes;
  }
}
