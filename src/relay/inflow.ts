/** The bytes from outside of one connection, on their way to its stream: read only while the guest takes them. */
import type { ByteBudget } from "./byte-budget.ts";
import type { Receiver, Upstream } from "./dialler.ts";
import type { PortStream } from "./port-stream.ts";
import type { Share } from "./turns.ts";

export interface InflowShared {
  share: Share;
  /** Bytes from outside that the guest has not taken, of one capsule. */
  held: ByteBudget;
  heldChanged: () => void;
  countBytes: (direction: "in" | "out", bytes: number) => void;
}

export interface InflowEvents {
  /** Bytes that the stream gets next, valid during the call. */
  heard: (bytes: Buffer) => void;
  closed: () => void;
}

export class Inflow implements Receiver {
  readonly #upstream: Upstream;
  readonly #stream: PortStream;
  readonly #shared: InflowShared;
  readonly #events: InflowEvents;
  #heldBytes = 0;
  /** The stream has no credit, or its port is congested. */
  #isBlocked = false;
  /** The capsule's share of the tick is used up. */
  #isWaiting = false;
  #hasEnded = false;
  #isStopped = false;
  readonly #turn = () => {
    this.#isWaiting = false;
    this.resume();
  };

  constructor(upstream: Upstream, stream: PortStream, shared: InflowShared, events: InflowEvents) {
    this.#upstream = upstream;
    this.#stream = stream;
    this.#shared = shared;
    this.#events = events;
  }

  begin(): void {
    this.#upstream.receive(this);
    this.resume();
  }

  data(bytes: Buffer): boolean {
    if (this.#isStopped) return true;
    const { share, countBytes, held } = this.#shared;
    const mayReadOn = share.spend(() => {
      countBytes("in", bytes.length);
      this.#events.heard(bytes);
      this.#isBlocked = !this.#stream.send(Buffer.from(bytes));
      this.#hold(this.#isBlocked ? this.#stream.queuedBytes : 0);
    }, this.#turn);
    this.#isWaiting = !mayReadOn;
    return mayReadOn && !this.#isBlocked && !held.isFull;
  }

  ended(): void {
    this.#hasEnded = true;
    if (!this.#isStopped) this.#stream.end();
  }

  closed(hadError: boolean): void {
    const wasStopped = this.#isStopped;
    this.stop();
    if (!wasStopped && (hadError || !this.#hasEnded)) this.#stream.reset();
    this.#events.closed();
  }

  /** The stream has taken what was held. */
  drained(): void {
    this.#isBlocked = false;
    this.#hold(0);
    this.resume();
  }

  /** Nothing more is read for the stream. */
  stop(): void {
    this.#isStopped = true;
    this.#hold(0);
  }

  /** The capsule's held bytes have reached their limit. */
  pause(): void {
    this.#upstream.pause();
  }

  resume(): void {
    if (!this.#isBlocked && !this.#isWaiting && !this.#isStopped && !this.#shared.held.isFull) this.#upstream.resume();
  }

  #hold(bytes: number): void {
    const more = bytes - this.#heldBytes;
    this.#heldBytes = bytes;
    if (more === 0) return;
    this.#shared.held.add(more);
    this.#shared.heldChanged();
  }
}
