/** Reads the pages of a diff (diff-format.ts) in order. */
import type { FileHandle } from "node:fs/promises";
import { damaged, dataOffset, indexOffset, type ReadDiff } from "./diff-format.ts";
import { chunkBytes, giveBackChunk, takeChunk } from "./diff-writer.ts";
import { pageBytes } from "./pagemap.ts";
import type { PieceCheck } from "./piece-hashes.ts";

const zeros = Buffer.alloc(chunkBytes);

/**
 * Calls `use` for every piece of a diff, in order, with its bytes and first page. The buffer is reused when `use` has settled.
 * The next chunk of the file is read ahead. `check` gets every byte of the file.
 */
export async function forEachPiece(
  file: FileHandle,
  { runs, dataPages, header, index }: ReadDiff,
  use: (bytes: Buffer, page: number, isZero: boolean) => Promise<void> | undefined,
  check?: PieceCheck,
): Promise<void> {
  await check?.add(header);
  await using reader = new DataReader(file, dataPages);
  for (const { page, count, isZero } of runs) {
    for (let done = 0; done < count; ) {
      const bytes = isZero ? zeros.subarray(0, (count - done) * pageBytes) : await reader.next(count - done);
      if (!isZero) await check?.add(bytes);
      await use(bytes, page + done, isZero);
      done += bytes.length / pageBytes;
    }
  }
  await check?.add(index);
  await check?.finish();
}

/** The data pages of a diff in order, read one chunk ahead. */
class DataReader implements AsyncDisposable {
  readonly #file: FileHandle;
  readonly #endOffset: number;
  #buffer = takeChunk();
  #other = takeChunk();
  #offset = dataOffset;
  #at = 0;
  #available = 0;
  #ahead: Promise<number>;

  constructor(file: FileHandle, dataPages: number) {
    this.#file = file;
    this.#endOffset = indexOffset(dataPages);
    this.#ahead = this.#read();
  }

  /** Up to `pages` pages, at least one. */
  async next(pages: number): Promise<Buffer> {
    if (this.#at === this.#available) {
      this.#available = await this.#ahead;
      this.#at = 0;
      [this.#buffer, this.#other] = [this.#other, this.#buffer];
      this.#ahead = this.#read();
    }
    const bytes = Math.min(pages * pageBytes, this.#available - this.#at);
    this.#at += bytes;
    return this.#buffer.subarray(this.#at - bytes, this.#at);
  }

  /** Waits for the read in flight. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#ahead.catch(() => {});
    giveBackChunk(this.#buffer);
    giveBackChunk(this.#other);
  }

  #read(): Promise<number> {
    const length = Math.min(chunkBytes, this.#endOffset - this.#offset);
    const position = this.#offset;
    this.#offset += length;
    const target = this.#other;
    const reading = (async () => {
      for (let got = 0; got < length; ) {
        const { bytesRead } = await this.#file.read(target, got, length - got, position + got);
        if (bytesRead === 0) throw damaged("it ends too early");
        got += bytesRead;
      }
      return length;
    })();
    reading.catch(() => {}); // seen by next()
    return reading;
  }
}
