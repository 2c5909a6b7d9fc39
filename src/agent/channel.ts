/**
 * One connection after its handshake: takes frames to their streams, and judges the guest. Any breach of the protocol
 * closes the connection; every open stream then hears `failed` with the same reason.
 */
import { CapsuleError } from "../wire/errors.ts";
import { failureOf, violation } from "./failure.ts";
import { encodeFrame, FrameParser, FrameType, headerBytes, maxPayloadBytes, moreFlag, writeHeader } from "./frames.ts";
import type { Pipe, PipeReader } from "./pipe.ts";
import { decodeEmpty, decodeFail, decodeNotice, limits, request, Verb } from "./protocol.ts";
import { ProtocolError, type RecordWriter } from "./records.ts";
import { Silence, SilenceError } from "./silence.ts";
import { type Carrier, Stream, type StreamHandler } from "./stream.ts";

/** What keeps a capsule going, and what finds out whether it does, is never refused. */
const vitalVerbs: ReadonlySet<Verb> = new Set([Verb.PROBE, Verb.WAKE, Verb.FREEZE, Verb.THAW]);
/** Of frames that wait for a guest that does not read: from here on nothing new is asked of it; there it is given up. */
const backlogBytes = 8 * 1024 * 1024;
const maxBacklogBytes = 16 * 1024 * 1024;

/**
 * What a guest may send to no purpose: padding, and frames of other epochs and streams that are over. Per cancelled stream it is owed
 * what was on its way; on top of that, so much between two looks at its silence.
 */
const uselessBytes = 1024 * 1024;

export interface ChannelOptions {
  /** A guest that leaves a probe and all else unanswered for this long is given up. */
  silenceMs: number;
}

export class Channel implements PipeReader, Carrier {
  /** Resolves once, with the reason. */
  readonly closed: Promise<Error>;
  readonly #resolveClosed: (reason: Error) => void;
  readonly #pipe: Pipe;
  readonly #epoch: number;
  readonly #parser: FrameParser;
  readonly #streams = new Map<number, Stream>();
  readonly #congested = new Set<Stream>();
  readonly #silence: Silence;
  #lastStream = 0;
  /** Streams up to this id have been open at some time. */
  #highestStream = 0;
  #reason: Error | undefined;
  #halting: "power_off" | "reboot" | undefined;
  #uselessRoomBytes = uselessBytes;

  constructor(pipe: Pipe, epoch: number, options: ChannelOptions) {
    const { promise, resolve } = Promise.withResolvers<Error>();
    this.closed = promise;
    this.#resolveClosed = resolve;
    this.#pipe = pipe;
    this.#epoch = epoch;
    this.#parser = new FrameParser(
      (type, flags, of, id, payload) => this.#frame(type, flags, of, id, payload),
      (bytes) => this.#bear(bytes),
    );
    this.#silence = new Silence({
      silenceMs: options.silenceMs,
      probe: () => this.call(Verb.PROBE, request(Verb.PROBE), decodeEmpty).catch(() => {}),
      onSilence: () => this.#giveUp(),
      onLook: () => {
        this.#uselessRoomBytes = Math.max(this.#uselessRoomBytes, uselessBytes);
      },
    });
  }

  /** Sends what was written in this turn of the event loop without waiting for its end. */
  flush(): void {
    this.#pipe.flush();
  }

  /** A guest about to be stopped may fall silent. */
  allowSilence(allowed: boolean): void {
    this.#silence.allow(allowed);
  }

  /** Opens a stream. What goes wrong, even at once, goes to `handler.failed`, never before this returns. */
  open(verb: Verb, request: RecordWriter, handler: StreamHandler): Stream {
    const refusal = this.#refusal(verb, request);
    const stream = new Stream(refusal ? 0 : this.#nextId(), verb, handler, this);
    if (refusal) {
      stream.shut();
      queueMicrotask(() => handler.failed(refusal));
    } else {
      this.#streams.set(stream.id, stream);
      this.#writeOpen(stream.id, request.finish());
    }
    return stream;
  }

  /** A verb that is one question and one answer. */
  call<T>(verb: Verb, request: RecordWriter, decode: (payload: Buffer) => T, signal?: AbortSignal): Promise<T> {
    return new Promise((resolve, reject) => {
      const stream = this.open(verb, request, {
        event: unexpected,
        data: unexpected,
        result: (payload) => resolve(decode(payload)),
        failed: reject,
      });
      stream.heed(signal);
    });
  }

  /** Idempotent: the first reason stands. */
  close(reason: Error): void {
    if (this.#reason) return;
    this.#reason = reason;
    this.#silence.stop();
    this.#parser.stop();
    this.#pipe.destroy();
    const streams = [...this.#streams.values()];
    this.#streams.clear();
    this.#congested.clear();
    for (const stream of streams) fail(stream, reason);
    this.#resolveClosed(reason);
  }

  // ---- The pipe's reader

  space(): Uint8Array {
    return this.#parser.space();
  }

  filled(bytes: number): void {
    this.#judge(() => this.#parser.filled(bytes));
  }

  /** Bytes that came right behind the handshake. */
  push(bytes: Uint8Array): void {
    this.#judge(() => this.#parser.push(bytes));
  }

  /** Everyone who waited gets a turn, in the order of waiting; who is stopped again goes to the back. */
  drained(): void {
    const waiting = [...this.#congested];
    this.#congested.clear();
    for (const stream of waiting) stream.pump();
  }

  lost(cause: Error | undefined): void {
    const end = { power_off: "the guest powered itself off", reboot: "the guest rebooted itself" };
    const what = this.#halting ? end[this.#halting] : "the connection to the guest agent was lost";
    this.close(new CapsuleError("agent_error", what, { cause }));
  }

  // ---- What streams need

  get congested(): boolean {
    return this.#pipe.congested;
  }

  control(type: number, stream: number, payload: Uint8Array): void {
    this.#pipe.write(encodeFrame({ type, flags: 0, epoch: this.#epoch, stream }, payload));
    if (this.#pipe.queuedBytes <= maxBacklogBytes) return;
    // Not now: whoever sends this must not hear of the end before the call returns.
    queueMicrotask(() => this.close(new CapsuleError("agent_error", "the guest agent does not read")));
  }

  data(stream: number, bytes: Uint8Array): void {
    const header = Buffer.allocUnsafe(headerBytes);
    writeHeader(header, 0, { type: FrameType.DATA, flags: 0, epoch: this.#epoch, stream, length: bytes.length });
    this.#pipe.write(header);
    this.#pipe.write(bytes);
  }

  whenClear(stream: Stream): void {
    this.#congested.add(stream);
  }

  /** It was cancelled; the guest will hear of that later. */
  forget(stream: Stream): void {
    this.#remove(stream);
    // Its whole window may be on its way, byte by byte, and a last word.
    this.#uselessRoomBytes += stream.allowanceBytes * (headerBytes + 1) + maxPayloadBytes;
  }

  #remove(stream: Stream): void {
    this.#streams.delete(stream.id);
    this.#congested.delete(stream);
  }

  // ---- Opening

  #refusal(verb: Verb, request: RecordWriter): Error | undefined {
    if (this.#reason) return this.#reason;
    if (vitalVerbs.has(verb)) return undefined;
    if (this.#pipe.queuedBytes > backlogBytes) {
      return new CapsuleError("quota_exceeded", "the capsule does not keep up with the requests it has already");
    }
    if (this.#streams.size >= limits.streams) {
      return new CapsuleError("quota_exceeded", `the capsule already has ${limits.streams} operations under way`);
    }
    if (request.length - headerBytes >= limits.requestBytes) {
      return new CapsuleError("invalid_request", `the request is longer than ${limits.requestBytes} bytes`);
    }
    return undefined;
  }

  #nextId(): number {
    do this.#lastStream = this.#lastStream === 0xffff_ffff ? 1 : this.#lastStream + 1;
    while (this.#streams.has(this.#lastStream));
    this.#highestStream = Math.max(this.#highestStream, this.#lastStream);
    return this.#lastStream;
  }

  /** `framed` begins with room for the first frame's header: the usual short request is one write of one buffer. */
  #writeOpen(stream: number, framed: Buffer): void {
    const open = { type: FrameType.OPEN, epoch: this.#epoch, stream };
    for (let at = headerBytes; at < framed.length; at += maxPayloadBytes) {
      const length = Math.min(maxPayloadBytes, framed.length - at);
      const flags = at + length < framed.length ? moreFlag : 0;
      const header = at === headerBytes ? framed : Buffer.allocUnsafe(headerBytes);
      writeHeader(header, 0, { ...open, flags, length });
      if (header !== framed) this.#pipe.write(header);
      this.#pipe.write(framed.subarray(header === framed ? 0 : at, at + length));
    }
  }

  // ---- Judging

  #judge(take: () => void): void {
    try {
      take();
    } catch (error) {
      this.close(violation(error));
    }
  }

  #frame(type: number, flags: number, epoch: number, id: number, payload: Buffer): void {
    if (epoch !== this.#epoch) {
      this.#bear(headerBytes + payload.length);
      return;
    }
    if (flags !== 0 && type !== FrameType.DATA) throw new ProtocolError(`a frame of type ${type} with flags ${flags}`);
    if (type === FrameType.NOTICE) {
      if (this.#halting !== undefined) throw new ProtocolError("a second notice of its end");
      this.#halting = decodeNotice(payload).reboot ? "reboot" : "power_off";
      return;
    }
    if (type < FrameType.DATA || type > FrameType.FAIL) throw new ProtocolError(`a frame of type ${type}`);
    const stream = this.#streams.get(id);
    if (stream) this.#deliver(stream, type, flags, payload);
    else if (id === 0 || id > this.#highestStream) throw new ProtocolError("a frame for a stream never opened");
    else this.#bear(headerBytes + payload.length);
  }

  #bear(bytes: number): void {
    this.#uselessRoomBytes -= bytes;
    if (this.#uselessRoomBytes < 0) throw new ProtocolError("more frames to no purpose than can be borne");
  }

  #deliver(stream: Stream, type: number, flags: number, payload: Buffer): void {
    this.#silence.break();
    switch (type) {
      case FrameType.DATA:
        stream.receiveData(flags, payload);
        break;
      case FrameType.END:
        stream.receiveEnd(payload);
        break;
      case FrameType.WINDOW:
        stream.receiveWindow(payload);
        break;
      case FrameType.EVENT:
        stream.handler.event(payload);
        break;
      case FrameType.RESULT:
        this.#finish(stream, () => stream.handler.result(payload));
        break;
      case FrameType.FAIL:
        this.#finish(stream, () => {
          const { code, message } = decodeFail(payload);
          stream.handler.failed(failureOf(stream.verb, code, message));
        });
        break;
    }
  }

  /** The stream is closed before its handler hears of it; a last word that makes no sense is the handler's failure too. */
  #finish(stream: Stream, lastWord: () => void): void {
    this.#remove(stream);
    stream.shut();
    try {
      lastWord();
    } catch (error) {
      if (error instanceof ProtocolError) fail(stream, violation(error));
      throw error;
    }
  }

  #giveUp(): void {
    const cause = new SilenceError("a probe was left unanswered");
    this.close(new CapsuleError("agent_error", "the guest agent has stopped answering", { cause }));
  }
}

function unexpected(): never {
  throw new ProtocolError("a message that the verb does not have");
}

function fail(stream: Stream, reason: Error): void {
  stream.shut();
  try {
    stream.handler.failed(reason);
  } catch (error) {
    // One bad listener must not keep the others from hearing; nobody is left to tell but the operator.
    process.emitWarning(error instanceof Error ? error : String(error));
  }
}
