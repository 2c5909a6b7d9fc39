/**
 * Distributes events to the event streams of a team. A ring keeps the team's last events while it has streams and
 * `lingerMs` longer, so that a client that was disconnected resumes where it was:
 *
 *     id 5f0c2a91-41 = the ring's epoch and the event's number in it
 *
 * A client whose id is of another epoch (new server or new ring) or has left the ring gets the event `reset`. Publishing
 * never waits and cannot fail: a stream whose client does not read is destroyed, and the client reconnects.
 */
import { randomBytes } from "node:crypto";
import { Readable } from "node:stream";
import { CapsuleError } from "../wire/errors.ts";
import type { EventName } from "../wire/event.ts";
import { EventTurns } from "./event-turns.ts";

export interface FeedOptions {
  /** Events of one team in its ring. */
  ringMax?: number;
  /** Life of a ring without streams. */
  lingerMs?: number;
  /** Bytes of one stream that wait for a turn of the event loop, or are unread. */
  backlogMaxBytes?: number;
  /** Streams of one team. */
  streamsMax?: number;
}

export const feedDefaults = { ringMax: 256, lingerMs: 300_000, backlogMaxBytes: 1 << 20, streamsMax: 100 } as const;

interface Ring {
  readonly epoch: string;
  /** Encoded events, oldest first; the last one has number `count`. */
  readonly kept: Buffer[];
  keptBytes: number;
  count: number;
  readonly streams: Set<Readable>;
  readonly turns: EventTurns;
  lingerTimer: NodeJS.Timeout | undefined;
}

/** An event whose id is of a counter that all hosts share. */
export interface SharedEvent {
  id: string;
  name: EventName | "reset";
  data: object;
}

export interface Subscription {
  /** The bytes of the response. */
  stream: Readable;
  /** Ends the stream after its queued events. */
  end: () => void;
}

const reconnectMs = 1_000;
/** Part of a backlog that kept events may have: a replay of all of them fits. */
const replayShare = 4;
const stillHere = Buffer.from(": still here\n\n");

export class EventFeed {
  readonly #rings = new Map<string, Ring>();
  readonly #ringMax: number;
  readonly #lingerMs: number;
  readonly #backlogMaxBytes: number;
  readonly #streamsMax: number;
  #isClosed = false;

  constructor(options: FeedOptions = {}) {
    const { ringMax, lingerMs, backlogMaxBytes, streamsMax } = { ...feedDefaults, ...options };
    this.#ringMax = ringMax;
    this.#lingerMs = lingerMs;
    this.#backlogMaxBytes = backlogMaxBytes;
    this.#streamsMax = streamsMax;
  }

  /**
   * Streams the team's events that follow `lastId`, or those from now on when it is undefined or unknown. Throws
   * CapsuleError("quota_exceeded").
   */
  subscribe(teamId: string, lastId: string | undefined): Subscription {
    return this.#open(teamId, (ring) => replayOf(ring, lastId));
  }

  /** As `subscribe`, of a stream that begins with these events. */
  open(teamId: string, events: readonly SharedEvent[]): Subscription {
    return this.#open(teamId, () => events.map(({ id, name, data }) => encode(id, name, data)));
  }

  /** Throws CapsuleError("quota_exceeded") where the team has all the streams that it may have. */
  requireRoom(teamId: string): void {
    const open = this.#rings.get(teamId)?.streams.size ?? 0;
    if (open < this.#streamsMax) return;
    throw new CapsuleError("quota_exceeded", `the team has ${open} event streams open already`);
  }

  #open(teamId: string, first: (ring: Ring) => Buffer[]): Subscription {
    this.requireRoom(teamId);
    const ring = this.#ringOf(teamId);
    const stream = new Readable({ highWaterMark: this.#backlogMaxBytes, read() {} });
    clearTimeout(ring.lingerTimer);
    ring.streams.add(stream);
    stream.once("close", () => this.#remove(teamId, ring, stream));
    stream.push(Buffer.concat([Buffer.from(`retry: ${reconnectMs}\n\n`), ...first(ring)]));
    if (this.#isClosed) endStream(ring, stream);
    return { stream, end: () => endStream(ring, stream) };
  }

  /** `data` is called only if the team has a ring. */
  publish(teamId: string, name: EventName, data: () => object): void {
    const ring = this.#rings.get(teamId);
    if (ring === undefined) return;
    ring.count += 1;
    const event = encode(`${ring.epoch}-${ring.count}`, name, data());
    ring.kept.push(event);
    ring.keptBytes += event.length;
    while (ring.kept.length > this.#ringMax || ring.keptBytes > this.#backlogMaxBytes / replayShare)
      ring.keptBytes -= ring.kept.shift()!.length;
    this.#pushToAll(ring, event);
  }

  /** Sends an event to the team's streams, and keeps nothing. */
  tell(teamId: string, { id, name, data }: SharedEvent): void {
    const ring = this.#rings.get(teamId);
    if (ring !== undefined) this.#pushToAll(ring, encode(id, name, data));
  }

  /** Sends a comment to every stream, so that clients and proxies do not time out. */
  heartbeat(): void {
    for (const ring of this.#rings.values()) this.#pushToAll(ring, stillHere);
  }

  /** Ends all streams. */
  close(): void {
    this.#isClosed = true;
    for (const ring of this.#rings.values()) {
      clearTimeout(ring.lingerTimer);
      for (const stream of ring.streams) endStream(ring, stream);
    }
  }

  /** Teams that have a ring. */
  get size(): number {
    return this.#rings.size;
  }

  #ringOf(teamId: string): Ring {
    let ring = this.#rings.get(teamId);
    if (ring === undefined) {
      const epoch = randomBytes(4).toString("hex");
      const [streams, turns] = [new Set<Readable>(), new EventTurns()];
      ring = { epoch, kept: [], keptBytes: 0, count: 0, streams, turns, lingerTimer: undefined };
      this.#rings.set(teamId, ring);
    }
    return ring;
  }

  #pushToAll({ streams, turns }: Ring, bytes: Buffer): void {
    for (const stream of streams) {
      turns.push(stream, bytes);
      if (turns.unreadBytes(stream) > this.#backlogMaxBytes) stream.destroy();
    }
  }

  #remove(teamId: string, ring: Ring, stream: Readable): void {
    ring.streams.delete(stream);
    if (ring.streams.size > 0 || this.#isClosed) return;
    clearTimeout(ring.lingerTimer);
    ring.lingerTimer = setTimeout(() => this.#rings.delete(teamId), this.#lingerMs).unref();
  }
}

/** Removes it from the ring first: nothing may be pushed after the end. */
function endStream({ streams, turns }: Ring, stream: Readable): void {
  if (streams.delete(stream)) turns.end(stream);
}

/** The events after `lastId`, or a reset. */
function replayOf({ epoch, count, kept }: Ring, lastId: string | undefined): Buffer[] {
  const position = `${epoch}-${count}`;
  if (lastId === undefined) return [encode(position, "reset", { reason: "new" })];
  const [, sameEpoch, digits] = /^([0-9a-f]{8})-(\d{1,15})$/.exec(lastId) ?? [];
  const behind = sameEpoch === epoch ? count - Number(digits) : Number.POSITIVE_INFINITY;
  if (behind < 0 || behind > kept.length) return [encode(position, "reset", { reason: "missed" })];
  return kept.slice(kept.length - behind);
}

/** A part of Node's pool of buffers would keep the whole pool for as long as the event is kept. */
function encode(id: string, name: EventName | "reset", data: object): Buffer {
  const text = `id: ${id}\nevent: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
  const bytes = Buffer.allocUnsafeSlow(Buffer.byteLength(text));
  bytes.write(text);
  return bytes;
}
