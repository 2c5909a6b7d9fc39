/** WATCH: the changes below a directory, decoded when they are taken, so that those which wait cost their bytes only. */
import type { CapsuleError } from "../wire/errors.ts";
import type { ChangeSink, ChangeStream, GuestChange, TakenChange, WatchRequest } from "./agent.ts";
import type { Channel } from "./channel.ts";
import { ChunkBuffer } from "./chunk-buffer.ts";
import { violation } from "./failure.ts";
import { DataChannel, decodeEmpty, EventKind, expectKind, request, Verb, whole } from "./protocol.ts";
import { ProtocolError, RecordReader, type RecordWriter, ShortRecord } from "./records.ts";
import type { Stream, StreamHandler } from "./stream.ts";

/** Most bytes of a path that the guest may tell. */
const pathMaxBytes = 4_096;

export function watchRequest({ path, recursive, directoriesMax }: WatchRequest): RecordWriter {
  return request(Verb.WATCH)
    .path(path)
    .u8(recursive ? 1 : 0)
    .u32(directoriesMax);
}

/** The path of the directory, with which those of its changes begin. */
export function decodeWatchingEvent(payload: Buffer): string {
  return whole(payload, (fields) => {
    expectKind(fields, EventKind.WATCHING);
    return checkPath(fields.path(pathMaxBytes));
  });
}

const overflow = 5;
const events = ["create", "write", "remove", "rename", "chmod"] as const;

/** One item; no end mark. */
export function readChange(fields: RecordReader): GuestChange | "overflow" {
  const kind = fields.u8();
  const path = fields.path(pathMaxBytes);
  const to = fields.optionalPath(pathMaxBytes);
  if (kind === overflow && path === "" && to === undefined) return "overflow";
  const event = events[kind];
  if (event === undefined || (to !== undefined) !== (event === "rename")) {
    throw new ProtocolError(`a change of unknown kind ${kind}`);
  }
  checkPath(path);
  return to === undefined ? ({ event, path } as GuestChange) : { event: "rename", path, to: checkPath(to) };
}

/** A path as the agent tells it: absolute, without empty components, `.` and `..`. */
function checkPath(path: string): string {
  const isClean = path === "/" || (path.startsWith("/") && !/\/\.{0,2}(?:\/|$)/.test(path));
  if (!isClean || path.includes("\0")) throw new ProtocolError("a change of a path that is not absolute and plain");
  return path;
}

export class WatchStream implements StreamHandler, ChangeStream {
  readonly #channel: Channel;
  readonly #stream: Stream;
  readonly #sink: ChangeSink;
  /** Undefined until the guest watches the directory. */
  #directory: string | undefined;
  readonly #arrived = new ChunkBuffer();
  /** Its bytes before `#position` are taken. */
  #bytes = Buffer.alloc(0);
  #position = 0;
  #isOver = false;

  constructor(channel: Channel, asked: WatchRequest, sink: ChangeSink) {
    this.#channel = channel;
    this.#sink = sink;
    this.#stream = channel.open(Verb.WATCH, watchRequest(asked), this);
  }

  take(): TakenChange | undefined {
    try {
      return this.#take();
    } catch (error) {
      this.#refuse(violation(error));
      return undefined;
    }
  }

  /** Closes the connection, which knows a stream no more that has its result. */
  #refuse(reason: CapsuleError): void {
    this.#channel.close(reason);
    if (!this.#isOver) return;
    this.cancel();
    this.#sink.failed(reason);
  }

  cancel(): void {
    this.#stream.cancel();
    this.#isOver = true;
    this.#arrived.discard();
    this.#bytes = Buffer.alloc(0);
    this.#position = 0;
  }

  event(payload: Buffer): void {
    const directory = decodeWatchingEvent(payload);
    if (this.#directory !== undefined) throw new ProtocolError("a directory that is watched twice");
    this.#directory = directory;
    this.#sink.watching();
  }

  data(output: number, bytes: Buffer): void {
    if (output !== DataChannel.MAIN || this.#directory === undefined) throw new ProtocolError("unexpected changes");
    this.#arrived.add(bytes);
    this.#sink.available();
  }

  result(payload: Buffer): void {
    decodeEmpty(payload);
    if (this.#directory === undefined) throw new ProtocolError("an end before the directory was watched");
    this.#isOver = true;
    this.#sink.available();
  }

  failed(error: Error): void {
    this.#sink.failed(error);
  }

  #take(): TakenChange | undefined {
    const change = this.#read(this.#bytes);
    if (change !== undefined) return change;
    const rest = this.#bytes.subarray(this.#position);
    if (this.#arrived.length > 0) {
      this.#bytes = Buffer.concat([rest, this.#arrived.take()]);
      this.#position = 0;
      const next = this.#read(this.#bytes);
      if (next !== undefined) return next;
    }
    if (!this.#isOver) return undefined;
    if (this.#position < this.#bytes.length) throw new ProtocolError("an incomplete change at the end");
    return "end";
  }

  /** Undefined: the next change is incomplete. */
  #read(bytes: Buffer): GuestChange | "overflow" | undefined {
    const fields = new RecordReader(bytes, this.#position);
    let change: GuestChange | "overflow";
    try {
      change = readChange(fields);
    } catch (error) {
      if (error instanceof ShortRecord) return undefined;
      throw error;
    }
    if (change !== "overflow") this.#requireWithin(change);
    this.#stream.consumed(fields.position - this.#position);
    this.#position = fields.position;
    return change;
  }

  #requireWithin(change: GuestChange): void {
    const top = this.#directory === "/" ? "/" : `${this.#directory}/`;
    const isWithin = (path: string) => path === this.#directory || path.startsWith(top);
    if (!isWithin(change.path) || (change.event === "rename" && !isWithin(change.to))) {
      throw new ProtocolError("a change outside the directory");
    }
  }
}
