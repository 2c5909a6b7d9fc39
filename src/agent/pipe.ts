/**
 * The byte pipe to one guest: a UNIX socket that is read directly into its reader's memory, and written in one system
 * call per event loop tick unless flush() is called.
 */
import net from "node:net";

/** The reader of a pipe: first the handshake, then the channel. */
export interface PipeReader {
  /** Buffer for the next bytes; never empty. */
  space(): Uint8Array;
  /** The first `bytes` of that buffer have been read. */
  filled(bytes: number): void;
  /** The pipe is no longer congested. */
  drained(): void;
  /** The pipe has closed. The last call. */
  lost(cause: Error | undefined): void;
}

const congestionBytes = 262_144;
/** Time for which a pipe is read in one tick of the event loop; the last read may exceed it. */
const tickShareMs = 0.5;
/** Pipes that have used up their time and are read again in one tick. */
const resumedPerTick = 8;

/** Pipes that have used up their time, in line: however many guests flood, a tick of the loop pays for eight of them. */
class Line {
  #waiting: (() => void)[] = [];

  add(resume: () => void): void {
    this.#waiting.push(resume);
    if (this.#waiting.length === 1) setImmediate(() => this.#resume());
  }

  #resume(): void {
    for (const resume of this.#waiting.splice(0, resumedPerTick)) resume();
    if (this.#waiting.length > 0) setImmediate(() => this.#resume());
  }
}

const line = new Line();

export class Pipe {
  reader: PipeReader;
  readonly #socket: net.Socket;
  #corked = false;
  /** Time spent on what was read in this tick of the event loop. */
  #tickMs = 0;
  #isTickOpen = false;
  readonly #endTick = () => {
    this.#tickMs = 0;
    this.#isTickOpen = false;
  };
  #cause: Error | undefined;

  constructor(socketPath: string, reader: PipeReader) {
    this.reader = reader;
    this.#socket = new net.Socket({
      writableHighWaterMark: congestionBytes,
      onread: {
        buffer: () => this.reader.space(),
        callback: (bytes) => {
          const before = performance.now();
          this.reader.filled(bytes);
          return this.#mayReadOn(performance.now() - before);
        },
      },
    } as net.SocketConstructorOpts);
    this.#socket.on("error", (error) => {
      this.#cause = error;
    });
    this.#socket.on("close", () => this.reader.lost(this.#cause));
    this.#socket.on("drain", () => this.reader.drained());
    this.#socket.connect(socketPath);
  }

  /** False stops reading until the pipe's turn in the line. A guest that floods small frames delays others by its share only. */
  #mayReadOn(spentMs: number): boolean {
    this.#tickMs += spentMs;
    if (!this.#isTickOpen) {
      this.#isTickOpen = true;
      setImmediate(this.#endTick);
    }
    if (this.#tickMs < tickShareMs) return true;
    line.add(() => this.#socket.resume());
    return false;
  }

  /** True: write no more data until `drained`. Control frames are few and may be written. */
  get congested(): boolean {
    return this.#socket.writableNeedDrain;
  }

  /** Bytes not yet written to the kernel. */
  get queuedBytes(): number {
    return this.#socket.writableLength;
  }

  /** The bytes must not change afterwards. */
  write(bytes: Uint8Array): void {
    if (this.#socket.destroyed) return;
    if (!this.#corked) {
      this.#corked = true;
      this.#socket.cork();
      process.nextTick(() => this.flush());
    }
    this.#socket.write(bytes);
  }

  /** Writes queued bytes now. */
  flush(): void {
    if (!this.#corked) return;
    this.#corked = false;
    this.#socket.uncork();
  }

  /** Idempotent; `lost` follows. */
  destroy(): void {
    this.#socket.destroy();
  }
}
