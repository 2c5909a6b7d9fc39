/**
 * The host's end of docs/NETWORK-PROTOCOL.md on one capsule's port: getting in step, frames, and the streams that the gateway opens.
 * Every byte may be an attacker's. Frames beyond the rules end the connection, and frames without an effect are counted.
 */
import type { Socket } from "node:net";
import { encodeFrame, FrameParser, FrameType, headerBytes, writeHeader } from "../agent/frames.ts";
import { nonceBytes, paddingBytes } from "../agent/protocol.ts";
import { ProtocolError } from "../agent/records.ts";
import { SendQueue } from "../agent/send-queue.ts";
import { type Hello, newHello, WelcomeScanner } from "../agent/welcome-scanner.ts";
import type { ByteBudget } from "./byte-budget.ts";
import { PortStream, type StreamPort } from "./port-stream.ts";
import {
  type Asked,
  decodeGatewayWelcome,
  decodeOpen,
  type GatewayWelcome,
  helloRecord,
  protocolVersion,
} from "./records.ts";
import type { Share } from "./turns.ts";

/** Delay before HELLO is repeated; it doubles with each repetition, up to the second value. */
const firstRepeatMs = 100;
const lastRepeatMs = 3_200;
/** Bytes of earlier connections that are read in search of a WELCOME. */
const scannedMaxBytes = 64 << 20;
/** Bytes that are parsed before the capsule's share of the tick is looked at. */
const parsedAtOnce = 4_096;
/** Unwritten bytes above which no more data is written. */
const congestionBytes = 262_144;
/** The same, while the ports of all capsules have too many: as many as a socket announces the end of. */
const leastCongestionBytes = 65_536;
/** Size of one write of the bytes that wait for the socket. */
const writtenAtOnce = 65_536;
/** Unwritten bytes of a gateway that sends requests and reads no answers. */
const unwrittenMaxBytes = 8 << 20;
/** The same, while the ports of all capsules have too many. */
const unwrittenSharedBytes = 1 << 20;
/** Bytes of frames without an effect beyond what a closed stream explains. */
const ignoredMaxBytes = 1 << 20;
/** A frame that crosses the one that closed its stream. */
const crossingBytes = 256;
const newStepMs = 1_000;

const padding = Buffer.alloc(paddingBytes);
const noNonce = Buffer.alloc(nonceBytes);

export interface PortOwner {
  /** The stream's sink is to be set within the call, or the stream answered. */
  asked(stream: PortStream, asked: Asked): void;
  /** All streams are closed. The last call. */
  lost(why: string): void;
}

export interface PortOptions {
  share: Share;
  owner: PortOwner;
  windows: ByteBudget;
  /** Bytes that the gateways of all capsules have not read. */
  unwritten: ByteBudget;
}

export class Port implements StreamPort {
  readonly windows: ByteBudget;
  readonly #unwritten: ByteBudget;
  #unwrittenBytes = 0;
  readonly #socket: Socket;
  readonly #share: Share;
  readonly #owner: PortOwner;
  readonly #streams = new Map<number, PortStream>();
  readonly #blocked = new Set<PortStream>();
  #hello: Hello = newHello();
  #scan: WelcomeScanner<GatewayWelcome> | undefined;
  #parser: FrameParser | undefined;
  #repeat: NodeJS.Timeout | undefined;
  #scannedBytes = 0;
  #lastStream = 0;
  #ignoredBytes = 0;
  #steppedMs = 0;
  /** Read and not parsed yet. */
  #unparsed: Buffer[] = [];
  #isCorked = false;
  /** Bytes that the socket has no room for, joined: their memory does not grow with the number of frames. */
  readonly #outbox = new SendQueue();
  #isClosed = false;
  readonly #resume = () => this.#parseOn();

  constructor(socket: Socket, { share, owner, windows, unwritten }: PortOptions) {
    this.#socket = socket;
    this.#share = share;
    this.#owner = owner;
    this.windows = windows;
    this.#unwritten = unwritten;
    socket.on("data", (chunk: Buffer) => this.#read(chunk));
    socket.on("drain", () => this.#drained());
    socket.on("error", () => {}); // followed by "close"
    socket.on("close", () => this.#end("its socket has ended"));
    this.#getInStep();
  }

  /** Closes the socket and all streams. `lost` does not follow. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    clearTimeout(this.#repeat);
    this.#parser?.stop();
    this.#closeStreams();
    this.#unwritten.free(this.#unwrittenBytes);
    this.#unwrittenBytes = 0;
    this.#outbox.clear();
    this.#socket.destroy();
  }

  // ---- For its streams

  get isCongested(): boolean {
    return this.#unwrittenBytes > (this.#unwritten.isFull ? leastCongestionBytes : congestionBytes);
  }

  control(type: number, stream: number, payload: Uint8Array): void {
    this.#write(encodeFrame({ type, flags: 0, epoch: this.#hello.epoch, stream }, payload));
  }

  data(stream: number, bytes: Uint8Array): void {
    const header = Buffer.allocUnsafe(headerBytes);
    const { epoch } = this.#hello;
    writeHeader(header, 0, { type: FrameType.DATA, flags: 0, epoch, stream, length: bytes.length });
    this.#write(header);
    this.#write(bytes);
  }

  onceDrained(stream: PortStream): void {
    this.#blocked.add(stream);
  }

  release(stream: PortStream, unreadBytes: number): void {
    this.#streams.delete(stream.id);
    this.#blocked.delete(stream);
    this.#ignoredBytes = Math.max(0, this.#ignoredBytes - unreadBytes - crossingBytes);
  }

  #drained(): void {
    while (this.#outbox.length > 0 && !this.#socket.writableNeedDrain)
      this.#socket.write(this.#outbox.take(writtenAtOnce));
    this.countUnwritten();
    const blocked = [...this.#blocked];
    this.#blocked.clear();
    for (const stream of blocked) stream.pump();
  }

  #write(bytes: Uint8Array): void {
    if (this.#isClosed) return;
    if (this.#outbox.length > 0 || this.#socket.writableNeedDrain) this.#outbox.add(bytes);
    else this.#writeNow(bytes);
    this.countUnwritten();
    const maxBytes = this.#unwritten.isFull ? unwrittenSharedBytes : unwrittenMaxBytes;
    if (this.#unwrittenBytes > maxBytes) this.#end("the gateway does not read");
  }

  #writeNow(bytes: Uint8Array): void {
    if (!this.#isCorked) {
      this.#isCorked = true;
      this.#socket.cork();
      process.nextTick(() => {
        this.#isCorked = false;
        this.#socket.uncork();
      });
    }
    this.#socket.write(bytes);
  }

  /** Counts what the gateway has not read. The socket tells of its last bytes only where it had too many. */
  countUnwritten(): void {
    if (this.#isClosed) return;
    const bytes = this.#socket.writableLength + this.#outbox.length;
    this.#unwritten.add(bytes - this.#unwrittenBytes);
    this.#unwrittenBytes = bytes;
  }

  // ---- Getting in step

  #getInStep(): void {
    this.#parser?.stop();
    this.#parser = undefined;
    this.#closeStreams();
    this.#scannedBytes = 0;
    this.#steppedMs = performance.now();
    this.#sayHello(firstRepeatMs);
  }

  #sayHello(repeatMs: number): void {
    this.#hello = newHello();
    this.#scan = new WelcomeScanner(this.#hello, decodeGatewayWelcome);
    this.#write(padding);
    this.control(FrameType.HELLO, 0, helloRecord(this.#hello.nonce));
    clearTimeout(this.#repeat);
    this.#repeat = setTimeout(() => this.#repeatHello(repeatMs), repeatMs);
  }

  /** A HELLO that the guest has not read yet is not lost. */
  #repeatHello(afterMs: number): void {
    const nextMs = Math.min(2 * afterMs, lastRepeatMs);
    if (this.#socket.writableLength + this.#outbox.length === 0) this.#sayHello(nextMs);
    else this.#repeat = setTimeout(() => this.#repeatHello(nextMs), nextMs);
  }

  #search(bytes: Buffer): void {
    this.#scannedBytes += bytes.length;
    const found = this.#scan!.take(bytes);
    if (found === undefined) {
      if (this.#scannedBytes > scannedMaxBytes) throw new ProtocolError(`no WELCOME in ${scannedMaxBytes} bytes`);
      return;
    }
    const { version } = found.welcome;
    if (version !== protocolVersion) throw new ProtocolError(`the gateway speaks version ${version}`);
    clearTimeout(this.#repeat);
    this.#scan = undefined;
    this.#lastStream = 0;
    this.#ignoredBytes = 0;
    this.#parser = new FrameParser(this.#onFrame, (zeros) => this.#ignore(zeros));
    this.#parser.push(found.rest);
  }

  // ---- Frames of the gateway

  #read(chunk: Buffer): void {
    this.#unparsed.push(chunk);
    if (this.#unparsed.length === 1) this.#parseOn();
  }

  #parseOn(): void {
    for (let chunk = this.#unparsed[0]; chunk !== undefined && !this.#isClosed; chunk = this.#unparsed[0]) {
      const part = chunk.subarray(0, parsedAtOnce);
      const mayReadOn = this.#share.spend(() => this.#parse(part), this.#resume);
      if (part.length < chunk.length) this.#unparsed[0] = chunk.subarray(part.length);
      else this.#unparsed.shift();
      if (mayReadOn) continue;
      this.#socket.pause();
      return;
    }
    if (!this.#isClosed) this.#socket.resume();
  }

  #parse(bytes: Buffer): void {
    try {
      if (this.#parser === undefined) this.#search(bytes);
      else this.#parser.push(bytes);
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      this.#end(`protocol: ${error.message}`);
    }
  }

  readonly #onFrame = (type: number, _flags: number, epoch: number, id: number, payload: Buffer): void => {
    if (type === FrameType.WELCOME && epoch === 0) this.#stepAgain(payload);
    else if (epoch !== this.#hello.epoch) this.#ignore(headerBytes + payload.length);
    else if (type === FrameType.OPEN) this.#open(id, decodeOpen(payload));
    else if (![FrameType.DATA, FrameType.END, FrameType.WINDOW, FrameType.RESET].includes(type as never))
      throw new ProtocolError(`a frame of type ${type}`);
    else {
      const stream = this.#streams.get(id);
      if (stream === undefined) this.#ignore(headerBytes + payload.length);
      else stream.receive(type, payload);
    }
  };

  /** A gateway that has begun anew. */
  #stepAgain(payload: Buffer): void {
    this.#ignore(headerBytes + payload.length);
    if (!payload.subarray(0, nonceBytes).equals(noNonce)) return;
    const earlyMs = this.#steppedMs + newStepMs - performance.now();
    clearTimeout(this.#repeat);
    if (earlyMs <= 0) this.#getInStep();
    else this.#repeat = setTimeout(() => this.#getInStep(), earlyMs);
  }

  #open(id: number, asked: Asked): void {
    if (id <= this.#lastStream) throw new ProtocolError(`stream ${id} after ${this.#lastStream}`);
    this.#lastStream = id;
    const stream = new PortStream(id, this);
    this.#streams.set(id, stream);
    this.#owner.asked(stream, asked);
  }

  #ignore(bytes: number): void {
    this.#ignoredBytes += bytes;
    if (this.#ignoredBytes > ignoredMaxBytes) throw new ProtocolError("more than 1 MiB of frames without an effect");
  }

  #closeStreams(): void {
    for (const stream of [...this.#streams.values()]) stream.close();
  }

  #end(why: string): void {
    if (this.#isClosed) return;
    this.close();
    this.#owner.lost(why);
  }
}
