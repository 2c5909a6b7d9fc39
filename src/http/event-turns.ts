/**
 * In one turn of the event loop, at most 64 units of 4 KiB of a team's events are pushed, over all its streams; the others wait for
 * the next turns, at most one event of each stream before the next stream's. The end of a stream waits behind its events.
 */
import type { Readable } from "node:stream";

export const turnUnits = 64;
/** Bytes that cost no more than the call that writes them. */
export const unitBytes = 4_096;

interface Line {
  readonly waiting: Buffer[];
  bytes: number;
  isEnding: boolean;
}

export class EventTurns {
  /** The streams with events that wait, in order of their turns. */
  readonly #lines = new Map<Readable, Line>();
  #usedUnits = 0;
  #isSoon = false;

  push(stream: Readable, bytes: Buffer): void {
    const line = this.#lines.get(stream);
    if (line !== undefined) {
      line.waiting.push(bytes);
      line.bytes += bytes.length;
    } else if (this.#usedUnits < turnUnits) this.#push(stream, bytes);
    else this.#lines.set(stream, { waiting: [bytes], bytes: bytes.length, isEnding: false });
  }

  end(stream: Readable): void {
    const line = this.#lines.get(stream);
    if (line === undefined) stream.push(null);
    else line.isEnding = true;
  }

  /** Bytes that wait for their turn, or for the client. */
  unreadBytes(stream: Readable): number {
    return stream.readableLength + (this.#lines.get(stream)?.bytes ?? 0);
  }

  #push(stream: Readable, bytes: Buffer): void {
    if (stream.destroyed) return;
    this.#usedUnits += Math.max(1, Math.ceil(bytes.length / unitBytes));
    stream.push(bytes);
    this.#beginSoon();
  }

  #beginSoon(): void {
    if (this.#isSoon) return;
    this.#isSoon = true;
    setImmediate(() => this.#begin());
  }

  /** Begins the next turn. A stream with a further event comes again after the others. */
  #begin(): void {
    this.#isSoon = false;
    this.#usedUnits = 0;
    for (const [stream, line] of this.#lines) {
      if (this.#usedUnits >= turnUnits) return;
      this.#lines.delete(stream);
      if (stream.destroyed) continue;
      const bytes = line.waiting.shift() as Buffer;
      line.bytes -= bytes.length;
      this.#push(stream, bytes);
      if (line.waiting.length > 0) this.#lines.set(stream, line);
      else if (line.isEnding) stream.push(null);
    }
  }
}
