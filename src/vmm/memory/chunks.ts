/**
 * Buffers through which memory moves between processes and files. They are used again: a new one each time makes the
 * garbage collector run, which takes longer than what the buffer was for.
 */

/** Memory moved by one call; about half a millisecond. */
export const chunkBytes = 1 << 20;
/** For one VM that is saved or loaded at a time; more at once make their own. */
const mostKept = 2;

const kept: Buffer[] = [];

/**
 * A buffer of a chunk's size, with whatever it held before. It begins on a page, as the way past the page cache demands:
 * memory that may grow has pages of its own.
 */
export function takeChunk(): Buffer {
  return kept.pop() ?? Buffer.from(new ArrayBuffer(chunkBytes, { maxByteLength: chunkBytes }));
}

/** Call only when nobody reads or writes it any more. */
export function giveBackChunk(chunk: Buffer): void {
  if (kept.length < mostKept) kept.push(chunk);
}
