/**
 * The byte pipe to one guest: a UNIX socket, read straight into its reader's memory, written in one system call per
 * turn of the event loop, and before its end only where somebody asks for it.
 */
import net from "node:net";

/** Who reads the pipe. Handed over once, from the handshake to the channel. */
export interface PipeReader {
  /** Where the next bytes are to be put; never empty. */
  space(): Uint8Array;
  /** The first `bytes` of that space are filled. */
  filled(bytes: number): void;
  /** After congestion: there is room again. */
  drained(): void;
  /** The pipe is gone. Nothing follows. */
  lost(cause: Error | undefined): void;
}

const queuedWritesBytes = 262_144;

export class Pipe {
  reader: PipeReader;
  readonly #socket: net.Socket;
  #corked = false;
  #cause: Error | undefined;

  constructor(socketPath: string, reader: PipeReader) {
    this.reader = reader;
    this.#socket = new net.Socket({
      writableHighWaterMark: queuedWritesBytes,
      onread: {
        buffer: () => this.reader.space(),
        callback: (bytes) => {
          this.reader.filled(bytes);
          return true;
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

  /** True: write no more bulk until `drained`. Control frames are few and may go on. */
  get congested(): boolean {
    return this.#socket.writableNeedDrain;
  }

  /** Bytes the kernel has not taken yet. */
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

  /** Writes what this turn has brought so far at once. */
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
