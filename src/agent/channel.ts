/**
 * One connection after its handshake: dispatches frames to streams and enforces the protocol. A violation closes the
 * connection and fails every open stream with the same reason.
 */
import { CapsuleError } from "../wire/errors.ts";
import { failureOf, lacksVerb, violation } from "./failure.ts";
import {
  encodeFrame,
  FrameParser,
  FrameType,
  headerBytes,
  maxPayloadBytes,
  openFrames,
  writeHeader,
} from "./frames.ts";
import { Liveness, SilenceError } from "./liveness.ts";
import { decodeNotice } from "./notice.ts";
import type { Pipe, PipeReader } from "./pipe.ts";
import { decodeEmpty, decodeFail, limits, request, Verb } from "./protocol.ts";
import { ProtocolError, type RecordWriter } from "./records.ts";
import { Stream, type StreamHandler, type StreamTransport } from "./stream.ts";

/** Verbs that are sent whatever the limits below: pausing, resuming and probing must work in an overloaded capsule. */
const unlimitedVerbs: ReadonlySet<Verb> = new Set([Verb.PROBE, Verb.WAKE, Verb.FREEZE, Verb.THAW]);
/**
 * Bytes queued for a guest that does not read: above the first limit requests are refused, above the second the
 * connection ends.
 */
const refusalBacklogBytes = 8 * 1024 * 1024;
const maxBacklogBytes = 16 * 1024 * 1024;

/**
 * Bytes of padding and of frames for other epochs or ended streams that a guest may send between two ticks of the
 * liveness timer. A cancelled stream adds the bytes that the guest may have sent before it saw the cancellation.
 */
const discardBudgetBytes = 1024 * 1024;

export interface ChannelOptions {
  /** The connection is closed when a probe and all other requests are unanswered for this long. */
  silenceMs: number;
  /** Numbers of the agent's verbs; others are refused before anything is sent. */
  verbs: ReadonlySet<number>;
}

export class Channel implements PipeReader, StreamTransport {
  /** Resolves once, with the reason. */
  readonly closed: Promise<Error>;
  readonly #resolveClosed: (reason: Error) => void;
  readonly #pipe: Pipe;
  readonly #epoch: number;
  readonly verbs: ReadonlySet<number>;
  readonly #parser: FrameParser;
  readonly #streams = new Map<number, Stream>();
  readonly #congested = new Set<Stream>();
  readonly #liveness: Liveness;
  #lastStream = 0;
  /** Largest stream id used so far. */
  #highestStream = 0;
  #reason: Error | undefined;
  #halting: "power_off" | "reboot" | undefined;
  #discardableBytes = discardBudgetBytes;

  constructor(pipe: Pipe, epoch: number, options: ChannelOptions) {
    const { promise, resolve } = Promise.withResolvers<Error>();
    this.closed = promise;
    this.#resolveClosed = resolve;
    this.#pipe = pipe;
    this.#epoch = epoch;
    this.verbs = options.verbs;
    this.#parser = new FrameParser(
      (type, flags, of, id, payload) => this.#frame(type, flags, of, id, payload),
      (bytes) => this.#discard(bytes),
    );
    this.#liveness = new Liveness({
      silenceMs: options.silenceMs,
      probe: () => this.call(Verb.PROBE, request(Verb.PROBE), decodeEmpty).catch(() => {}),
      onUnresponsive: () => this.#closeAsUnresponsive(),
      onTick: () => {
        this.#discardableBytes = Math.max(this.#discardableBytes, discardBudgetBytes);
      },
    });
  }

  /** Writes queued frames now instead of at the end of the current event loop tick. */
  flush(): void {
    this.#pipe.flush();
  }

  /** Before a VM is stopped: its guest cannot answer probes then. */
  suspendLiveness(): void {
    this.#liveness.suspend();
  }

  resumeLiveness(): void {
    this.#liveness.resume();
  }

  /** Opens a stream. Every failure is passed to `handler.failed`, after this method has returned. */
  open(verb: Verb, request: RecordWriter, handler: StreamHandler): Stream {
    const refusal = this.#refusal(verb, request);
    const stream = new Stream(refusal ? 0 : this.#nextId(), verb, handler, this);
    if (refusal) {
      stream.close();
      queueMicrotask(() => handler.failed(refusal));
    } else {
      this.#streams.set(stream.id, stream);
      for (const bytes of openFrames(request.finish(), this.#epoch, stream.id)) this.#pipe.write(bytes);
    }
    return stream;
  }

  /** Sends a verb with one request and one result. */
  call<T>(verb: Verb, request: RecordWriter, decode: (payload: Buffer) => T, signal?: AbortSignal): Promise<T> {
    return new Promise((resolve, reject) => {
      const stream = this.open(verb, request, {
        event: unexpected,
        data: unexpected,
        result: (payload) => resolve(decode(payload)),
        failed: reject,
      });
      stream.cancelOn(signal);
    });
  }

  /** Idempotent; the first reason is kept. */
  close(reason: Error): void {
    if (this.#reason) return;
    this.#reason = reason;
    this.#liveness.stop();
    this.#parser.stop();
    this.#pipe.destroy();
    const streams = [...this.#streams.values()];
    this.#streams.clear();
    this.#congested.clear();
    for (const stream of streams) fail(stream, reason);
    this.#resolveClosed(reason);
  }

  // ---- PipeReader

  space(): Uint8Array {
    return this.#parser.space();
  }

  filled(bytes: number): void {
    this.#closeOnError(() => this.#parser.filled(bytes));
  }

  /** Takes bytes that were read together with the WELCOME. */
  push(bytes: Uint8Array): void {
    this.#closeOnError(() => this.#parser.push(bytes));
  }

  /**
   * Lets congested streams send, in the order of their congestion. A stream that fills the pipe again is queued last.
   */
  drained(): void {
    const waiting = [...this.#congested];
    this.#congested.clear();
    for (const stream of waiting) stream.pump();
  }

  lost(cause: Error | undefined): void {
    const reasons = { power_off: "the guest powered itself off", reboot: "the guest rebooted itself" };
    const reason = this.#halting ? reasons[this.#halting] : "the connection to the guest agent was lost";
    this.close(new CapsuleError("agent_error", reason, { cause }));
  }

  // ---- StreamTransport

  get congested(): boolean {
    return this.#pipe.congested;
  }

  control(type: number, stream: number, payload: Uint8Array): void {
    this.#pipe.write(encodeFrame({ type, flags: 0, epoch: this.#epoch, stream }, payload));
    if (this.#pipe.queuedBytes <= maxBacklogBytes) return;
    // Deferred, because the caller's `failed` must not run before the call returns.
    queueMicrotask(() => this.close(new CapsuleError("agent_error", "the guest agent does not read its requests")));
  }

  data(stream: number, bytes: Uint8Array): void {
    const header = Buffer.allocUnsafe(headerBytes);
    writeHeader(header, 0, { type: FrameType.DATA, flags: 0, epoch: this.#epoch, stream, length: bytes.length });
    this.#pipe.write(header);
    this.#pipe.write(bytes);
  }

  onceDrained(stream: Stream): void {
    this.#congested.add(stream);
  }

  /** Removes a cancelled stream. The guest may send more of it until it reads the CANCEL. */
  release(stream: Stream): void {
    this.#remove(stream);
    // Its whole window may arrive, one byte per frame, and one more frame with its result.
    this.#discardableBytes += stream.allowanceBytes * (headerBytes + 1) + maxPayloadBytes;
  }

  #remove(stream: Stream): void {
    this.#streams.delete(stream.id);
    this.#congested.delete(stream);
  }

  // ---- Opening

  #refusal(verb: Verb, request: RecordWriter): Error | undefined {
    if (this.#reason) return this.#reason;
    if (unlimitedVerbs.has(verb)) return undefined;
    if (!this.verbs.has(verb)) return lacksVerb(verb);
    if (this.#pipe.queuedBytes > refusalBacklogBytes) {
      return new CapsuleError("quota_exceeded", "the capsule does not keep up with its earlier requests");
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

  // ---- Incoming frames

  #closeOnError(parse: () => void): void {
    try {
      parse();
    } catch (error) {
      this.close(violation(error));
    }
  }

  #frame(type: number, flags: number, epoch: number, id: number, payload: Buffer): void {
    if (epoch !== this.#epoch) {
      this.#discard(headerBytes + payload.length);
      return;
    }
    if (flags !== 0 && type !== FrameType.DATA) throw new ProtocolError(`a frame of type ${type} with flags ${flags}`);
    if (type === FrameType.NOTICE) {
      if (this.#halting !== undefined) throw new ProtocolError("a second halt notice");
      this.#halting = decodeNotice(payload).reboot ? "reboot" : "power_off";
      return;
    }
    if (type < FrameType.DATA || type > FrameType.FAIL) throw new ProtocolError(`a frame of type ${type}`);
    const stream = this.#streams.get(id);
    if (stream) this.#deliver(stream, type, flags, payload);
    else if (id === 0 || id > this.#highestStream) throw new ProtocolError("a frame for a stream never opened");
    else this.#discard(headerBytes + payload.length);
  }

  #discard(bytes: number): void {
    this.#discardableBytes -= bytes;
    if (this.#discardableBytes < 0) throw new ProtocolError("too many frames for closed streams, or too much padding");
  }

  #deliver(stream: Stream, type: number, flags: number, payload: Buffer): void {
    this.#liveness.heard();
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

  /**
   * Closes the stream, then runs its handler. A payload that cannot be decoded fails the handler as well as the
   * connection.
   */
  #finish(stream: Stream, handle: () => void): void {
    this.#remove(stream);
    stream.close();
    try {
      handle();
    } catch (error) {
      if (error instanceof ProtocolError) fail(stream, violation(error));
      throw error;
    }
  }

  #closeAsUnresponsive(): void {
    const cause = new SilenceError("a probe was left unanswered");
    this.close(new CapsuleError("agent_error", "the guest agent has stopped answering", { cause }));
  }
}

function unexpected(): never {
  throw new ProtocolError("a frame that the verb does not have");
}

function fail(stream: Stream, reason: Error): void {
  stream.close();
  try {
    stream.handler.failed(reason);
  } catch (error) {
    // An exception of one handler must not keep the others from being called; it is reported as a process warning.
    process.emitWarning(error instanceof Error ? error : String(error));
  }
}
