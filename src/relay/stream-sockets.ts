/** A gateway's stream and a dialled connection as Node's duplex streams, for node:http and node:tls. */
import { Duplex } from "node:stream";
import { SendQueue } from "../agent/send-queue.ts";
import type { Upstream } from "./dialler.ts";
import type { InflowShared } from "./inflow.ts";
import type { PortStream } from "./port-stream.ts";
import type { Share } from "./turns.ts";

/** Time that a program has to close after the relay has. */
const lingerMs = 5_000;
const readAtOnce = 65_536;

/** The guest's end. Destroyed before both sides have ended, it is a reset to the guest, and the reverse. */
export class GuestSocket extends Duplex {
  readonly #stream: PortStream;
  readonly #shared: InflowShared;
  /** Bytes of the guest, joined until the reader wants more: their memory does not grow with the number of frames. */
  readonly #unread = new SendQueue();
  #isWanted = false;
  #hasGuestEnded = false;
  #heldBytes = 0;
  #written: (() => void) | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(stream: PortStream, shared: InflowShared) {
    super({ allowHalfOpen: true, readableHighWaterMark: 1 });
    this.#stream = stream;
    this.#shared = shared;
    stream.sink = {
      data: (bytes) => this.received(bytes),
      ended: () => this.receivedEnd(),
      drained: () => this.#drained(),
      closed: () => this.destroy(),
    };
  }

  /** Bytes of the guest, which may be a view that is valid only during the call. */
  received(bytes: Buffer): void {
    this.#shared.countBytes("out", bytes.length);
    if (this.destroyed) return;
    this.#unread.add(Buffer.from(bytes));
    this.#pass();
  }

  /** The guest has ended its bytes. */
  receivedEnd(): void {
    this.#hasGuestEnded = true;
    if (this.#unread.length === 0) this.push(null);
  }

  /** The capsule holds fewer bytes than its limit again. */
  resumeWriting(): void {
    if (this.#heldBytes > 0 || this.#shared.held.isFull) return;
    const written = this.#written;
    this.#written = undefined;
    written?.();
  }

  override _read(): void {
    this.#isWanted = true;
    this.#pass();
  }

  override _write(chunk: Buffer, _encoding: string, done: () => void): void {
    this.#shared.countBytes("in", chunk.length);
    this.#written = done;
    const isSent = this.#stream.send(chunk);
    this.#hold(isSent ? 0 : this.#stream.queuedBytes);
    this.resumeWriting();
  }

  override _final(done: () => void): void {
    this.#stream.end();
    if (!this.#stream.isClosed) this.#timer = setTimeout(() => this.destroy(), lingerMs);
    done();
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    clearTimeout(this.#timer);
    this.#hold(0);
    this.#stream.reset();
    done(error);
  }

  #drained(): void {
    this.#hold(0);
    this.resumeWriting();
  }

  #pass(): void {
    while (this.#isWanted && this.#unread.length > 0 && !this.destroyed) {
      const bytes = this.#unread.take(readAtOnce);
      this.#isWanted = false; // `push` may ask for more at once
      if (this.push(bytes)) this.#isWanted = true;
      this.#stream.consumed(bytes.length);
      if (this.#hasGuestEnded && this.#unread.length === 0) this.push(null);
    }
  }

  #hold(bytes: number): void {
    const more = bytes - this.#heldBytes;
    this.#heldBytes = bytes;
    if (more === 0) return;
    this.#shared.held.add(more);
    this.#shared.heldChanged();
  }
}

/** A connection to outside. Its bytes are read as work of the capsule. */
export class UpstreamSocket extends Duplex {
  readonly #upstream: Upstream;
  readonly #share: Share;
  /** The reader has enough. */
  #isFull = false;
  /** The capsule's share of the tick is used up. */
  #isWaiting = false;
  readonly #turn = () => {
    this.#isWaiting = false;
    this.#readOn();
  };

  constructor(upstream: Upstream, share: Share) {
    super({ allowHalfOpen: true });
    this.#upstream = upstream;
    this.#share = share;
    upstream.receive({
      data: (bytes) => this.#received(bytes),
      ended: () => this.push(null),
      closed: (hadError) => this.destroy(hadError ? new Error("the connection was reset") : undefined),
    });
  }

  #received(bytes: Buffer): boolean {
    if (this.destroyed) return true;
    this.#isWaiting = !this.#share.spend(() => {
      this.#isFull = !this.push(Buffer.from(bytes));
    }, this.#turn);
    return !this.#isFull && !this.#isWaiting;
  }

  override _read(): void {
    this.#isFull = false;
    this.#readOn();
  }

  override _write(chunk: Buffer, _encoding: string, done: () => void): void {
    this.#upstream.write(chunk, done);
  }

  override _final(done: () => void): void {
    this.#upstream.end();
    done();
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    this.#upstream.reset();
    done(error);
  }

  #readOn(): void {
    if (!this.#isFull && !this.#isWaiting && !this.destroyed) this.#upstream.resume();
  }
}
