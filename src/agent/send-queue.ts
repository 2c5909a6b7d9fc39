/**
 * Bytes queued in order. Small ones are joined, so that memory is proportional to the bytes and not to the number of
 * sends.
 */
const joinedMaxBytes = 64 * 1024;
const minBlockBytes = 1024;

/** The bytes from `start` to `end` of `block`. */
interface Entry {
  block: Uint8Array;
  start: number;
  end: number;
  next: Entry | undefined;
}

export class SendQueue {
  #first: Entry | undefined;
  #last: Entry | undefined;
  #length = 0;

  get length(): number {
    return this.#length;
  }

  /** The bytes must not change afterwards. */
  add(bytes: Uint8Array): void {
    if (bytes.length === 0) return;
    this.#length += bytes.length;
    const last = this.#last;
    if (last !== undefined && isJoined(last, bytes)) return;
    this.#last = { block: bytes, start: 0, end: bytes.length, next: undefined };
    if (last === undefined) this.#first = this.#last;
    else last.next = this.#last;
  }

  /** The next bytes: at least one unless the queue is empty, and at most `maxBytes`. They do not change afterwards. */
  take(maxBytes: number): Uint8Array {
    const first = this.#first;
    if (first === undefined) return new Uint8Array();
    const bytes = first.block.subarray(first.start, Math.min(first.end, first.start + maxBytes));
    first.start += bytes.length;
    this.#length -= bytes.length;
    if (first.start === first.end) this.#first = first.next;
    if (this.#first === undefined) this.#last = undefined;
    return bytes;
  }

  clear(): void {
    this.#first = undefined;
    this.#last = undefined;
    this.#length = 0;
  }
}

/**
 * Copies the bytes behind those of the entry; false if they would exceed 64 KiB. A block without room is replaced by one
 * of twice the bytes, and a block of 64 KiB by none, so that each byte is copied a few times at most. A block that was
 * added has no room, so it is never written to.
 */
function isJoined(entry: Entry, bytes: Uint8Array): boolean {
  const length = entry.end - entry.start;
  const joinedLength = length + bytes.length;
  if (joinedLength > joinedMaxBytes) return false;
  if (entry.end + bytes.length > entry.block.length) {
    if (entry.block.length >= joinedMaxBytes) return false;
    const block = Buffer.allocUnsafeSlow(Math.min(joinedMaxBytes, Math.max(2 * joinedLength, minBlockBytes)));
    block.set(entry.block.subarray(entry.start, entry.end));
    Object.assign(entry, { block, start: 0, end: length });
  }
  entry.block.set(bytes, entry.end);
  entry.end += bytes.length;
  return true;
}
