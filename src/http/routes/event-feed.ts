/**
 * What changed, to whoever of the team listens. A team's last events are kept in a ring while somebody listens and a
 * while longer, so that a listener who was cut off goes on where it was:
 *
 *     id 5f0c2a91-41 = the ring's epoch and the event's number in it
 *
 * An id of another epoch (the server or the ring is new) or one that has left the ring is answered by `reset`. Nothing
 * here can fail or wait: a listener who does not read is cut off, and comes back.
 */
import { randomBytes } from "node:crypto";
import { Readable } from "node:stream";
import { CapsuleError } from "../../wire/errors.ts";
import type { EventName } from "../../wire/event.ts";

export interface FeedOptions {
  /** Events of one team that are kept. */
  ringMax?: number;
  /** How long they are kept when nobody listens any more. */
  lingerMs?: number;
  /** How far a listener may fall behind. */
  backlogMaxBytes?: number;
  /** Of one team. */
  listenersMax?: number;
}

interface Ring {
  readonly epoch: string;
  /** Whole events, oldest first; the last one has number `count`. */
  readonly kept: string[];
  count: number;
  readonly listeners: Set<Readable>;
  lingering: NodeJS.Timeout | undefined;
}

export interface Hearing {
  /** Bytes of an event stream. */
  stream: Readable;
  /** Ends the stream: the listener may hear no more. */
  end: () => void;
}

const reconnectMs = 1_000;

export class EventFeed {
  readonly #rings = new Map<string, Ring>();
  readonly #ringMax: number;
  readonly #lingerMs: number;
  readonly #backlogMaxBytes: number;
  readonly #listenersMax: number;
  #isClosed = false;

  constructor({ ringMax = 256, lingerMs = 300_000, backlogMaxBytes = 1 << 20, listenersMax = 100 }: FeedOptions = {}) {
    this.#ringMax = ringMax;
    this.#lingerMs = lingerMs;
    this.#backlogMaxBytes = backlogMaxBytes;
    this.#listenersMax = listenersMax;
  }

  /**
   * The team's events from after `lastId` on, as the bytes of an event stream; without it, or when it is not known any
   * more, from now on. Throws CapsuleError("quota_exceeded").
   */
  listen(teamId: string, lastId: string | undefined): Hearing {
    const ring = this.#ringOf(teamId);
    if (ring.listeners.size >= this.#listenersMax) {
      throw new CapsuleError("quota_exceeded", `the team has ${ring.listeners.size} event streams open already`);
    }
    const stream = new Readable({ highWaterMark: this.#backlogMaxBytes, read() {} });
    clearTimeout(ring.lingering);
    ring.listeners.add(stream);
    stream.once("close", () => this.#leave(teamId, ring, stream));
    this.#push(stream, `retry: ${reconnectMs}\n\n${missed(ring, lastId)}`);
    if (this.#isClosed) dismiss(ring, stream);
    return { stream, end: () => dismiss(ring, stream) };
  }

  /** Tells the team's listeners; costs nothing when there are none. */
  publish(teamId: string, name: EventName, data: () => object): void {
    const ring = this.#rings.get(teamId);
    if (ring === undefined) return;
    ring.count += 1;
    const event = encode(`${ring.epoch}-${ring.count}`, name, data());
    ring.kept.push(event);
    if (ring.kept.length > this.#ringMax) ring.kept.shift();
    for (const stream of ring.listeners) this.#push(stream, event);
  }

  /** Shows every listener, and every proxy between, that the line is alive. */
  beat(): void {
    for (const { listeners } of this.#rings.values()) {
      for (const stream of listeners) this.#push(stream, ": still here\n\n");
    }
  }

  /** Ends all streams. */
  close(): void {
    this.#isClosed = true;
    for (const ring of this.#rings.values()) {
      clearTimeout(ring.lingering);
      for (const stream of ring.listeners) dismiss(ring, stream);
    }
  }

  /** Teams whose events are kept. */
  get size(): number {
    return this.#rings.size;
  }

  #ringOf(teamId: string): Ring {
    let ring = this.#rings.get(teamId);
    if (ring === undefined) {
      const epoch = randomBytes(4).toString("hex");
      ring = { epoch, kept: [], count: 0, listeners: new Set(), lingering: undefined };
      this.#rings.set(teamId, ring);
    }
    return ring;
  }

  #push(stream: Readable, text: string): void {
    stream.push(text);
    if (stream.readableLength > this.#backlogMaxBytes) stream.destroy();
  }

  #leave(teamId: string, ring: Ring, stream: Readable): void {
    ring.listeners.delete(stream);
    if (ring.listeners.size > 0 || this.#isClosed) return;
    clearTimeout(ring.lingering);
    ring.lingering = setTimeout(() => this.#rings.delete(teamId), this.#lingerMs).unref();
  }
}

/** Nothing may be pushed after the end, so it is no listener any more. */
function dismiss({ listeners }: Ring, stream: Readable): void {
  if (listeners.delete(stream)) stream.push(null);
}

/** What a listener who comes with `lastId` is told at once. */
function missed({ epoch, count, kept }: Ring, lastId: string | undefined): string {
  const position = `${epoch}-${count}`;
  if (lastId === undefined) return encode(position, "reset", { reason: "new" });
  const [, sameEpoch, digits] = /^([0-9a-f]{8})-(\d{1,15})$/.exec(lastId) ?? [];
  const behind = sameEpoch === epoch ? count - Number(digits) : Number.POSITIVE_INFINITY;
  if (behind < 0 || behind > kept.length) return encode(position, "reset", { reason: "missed" });
  return kept.slice(kept.length - behind).join("");
}

function encode(id: string, name: EventName | "reset", data: object): string {
  return `id: ${id}\nevent: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}
