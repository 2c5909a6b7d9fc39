/**
 * The other end of a guest's network port, played by a test: it gets in step with the gateway, records what
 * that asks, and says what the test tells it to. docs/NETWORK-PROTOCOL.md is the contract.
 */
import assert from "node:assert/strict";
import { randomBytes, randomInt } from "node:crypto";
import { EventEmitter, once } from "node:events";
import net from "node:net";
import { encodeFrame, FrameParser, FrameType, maxPayloadBytes } from "../../src/agent/frames.ts";
import { emptyRecord, endRecord, nonceBytes, paddingBytes, windowRecord } from "../../src/agent/protocol.ts";
import { RecordReader, RecordWriter } from "../../src/agent/records.ts";
import { waitFor } from "../wait-for.ts";

export const Reset = 0x0c;
const magic = Buffer.from("capsule-net");
const [connectVerb, resolveVerb] = [51, 52];
const firstWindow = 16_384;
const helloMs = 300;

export interface ConnectRequest {
  kind: "connect";
  address: string;
  port: number;
}

export interface ResolveRequest {
  kind: "resolve";
  name: string;
  type: number;
}

export interface Answer {
  type: number;
  ttl: number;
  data: Uint8Array;
}

type Send = (type: number, payload: Uint8Array, stream: number) => void;

/** One stream that the gateway has opened. Bytes that it sends are given back as credit at once, unless the test holds them. */
export class PeerStream extends EventEmitter {
  readonly number: number;
  readonly request: ConnectRequest | ResolveRequest;
  readonly #send: Send;
  readonly #received: Buffer[] = [];
  #credit = firstWindow;
  #window = firstWindow;
  #sent = 0;
  holdsCredit = false;
  /** The gateway's END, with its total. */
  total: number | undefined;
  isReset = false;
  /** The most that the gateway has let this side send at once. */
  widest = firstWindow;

  constructor(number: number, request: PeerStream["request"], send: Send) {
    super();
    this.number = number;
    this.request = request;
    this.#send = send;
  }

  send(type: number, payload: Uint8Array): void {
    this.#send(type, payload, this.number);
  }

  received(): Buffer {
    return Buffer.concat(this.#received);
  }

  get receivedBytes(): number {
    return this.#received.reduce((sum, part) => sum + part.length, 0);
  }

  open(): this {
    this.send(FrameType.EVENT, new RecordWriter().u16(1).finish());
    return this;
  }

  fail(code: string): void {
    this.send(FrameType.FAIL, new RecordWriter().str(code).str("said by a test").finish());
  }

  reset(): void {
    this.send(Reset, emptyRecord);
  }

  answer(rcode: number, answers: readonly Answer[]): void {
    const record = new RecordWriter().u8(rcode).u32(answers.length);
    for (const { type, ttl, data } of answers) record.u16(type).u32(ttl).bytes(data);
    this.send(FrameType.RESULT, record.finish());
  }

  /** Sends all of it, as credit comes. Throws when the stream is reset meanwhile. */
  async write(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.length; ) {
      await waitFor(
        () => `credit for byte ${at} of ${bytes.length}`,
        () => this.#credit > 0 || this.isReset,
      );
      if (this.isReset) throw new Error("the stream is reset");
      const part = bytes.subarray(at, at + Math.min(this.#credit, maxPayloadBytes));
      this.send(FrameType.DATA, part);
      this.#credit -= part.length;
      this.#sent += part.length;
      at += part.length;
    }
  }

  get sentBytes(): number {
    return this.#sent;
  }

  /** Bytes that may be sent now. */
  get credit(): number {
    return this.#credit;
  }

  end(): void {
    this.send(FrameType.END, endRecord(this.#sent));
  }

  grant(bytes: number): void {
    this.#window += bytes;
    this.send(FrameType.WINDOW, windowRecord(bytes));
  }

  take(type: number, payload: Buffer): void {
    switch (type) {
      case FrameType.DATA:
        assert.ok(payload.length > 0 && payload.length <= this.#window, "DATA within the window");
        assert.equal(this.total, undefined, "no DATA behind END");
        this.#window -= payload.length;
        this.#received.push(Buffer.from(payload));
        if (!this.holdsCredit) this.grant(payload.length);
        break;
      case FrameType.END:
        this.total = new RecordReader(payload).u64();
        assert.equal(this.total, this.receivedBytes, "the total of END");
        break;
      case FrameType.WINDOW: {
        const credit = new RecordReader(payload).u32();
        assert.ok(credit > 0);
        this.#credit += credit;
        this.widest = Math.max(this.widest, this.#credit);
        break;
      }
      case Reset:
        this.isReset = true;
        break;
      default:
        assert.fail(`the gateway sent a frame of type ${type}`);
    }
    this.emit("change");
  }
}

export class RelayPeer extends EventEmitter {
  readonly #socket: net.Socket;
  readonly streams = new Map<number, PeerStream>();
  /** Called with every stream that the gateway opens. */
  onRequest: (stream: PeerStream) => void = () => {};
  #epoch = 0;
  #nonces = new Map<number, Buffer>();
  #welcomed: number | undefined;
  #last = 0;
  /** How often a gateway that has begun has asked for another HELLO. */
  begun = 0;
  /** Why the parser or a check refused the gateway's bytes. */
  fault: unknown;

  /** Connects and gets in step with the gateway, which may ask as soon as it is. */
  static async connect(path: string, onRequest: RelayPeer["onRequest"] = () => {}): Promise<RelayPeer> {
    const socket = net.connect(path);
    await once(socket, "connect");
    const peer = new RelayPeer(socket);
    peer.onRequest = onRequest;
    await peer.hello();
    return peer;
  }

  private constructor(socket: net.Socket) {
    super();
    this.#socket = socket;
    const parser = new FrameParser((...frame) => this.#take(...frame));
    socket.on("data", (bytes: Buffer) => {
      try {
        parser.push(bytes);
      } catch (error) {
        this.fault ??= error;
        socket.destroy();
      }
    });
    socket.on("error", () => {});
  }

  get closed(): boolean {
    return this.#socket.destroyed;
  }

  /** A new epoch. Repeated, since a guest that boots may lose bytes. */
  async hello(): Promise<void> {
    this.#welcomed = undefined;
    let [askedMs, pauseMs] = [Number.NEGATIVE_INFINITY, helloMs];
    await waitFor("the gateway's WELCOME", () => {
      if (this.fault !== undefined) throw this.fault;
      if (performance.now() - askedMs > pauseMs) {
        askedMs = performance.now();
        pauseMs *= 2; // a slow machine's answer is one to an earlier HELLO otherwise, every time
        this.#greet();
      }
      return this.#welcomed !== undefined;
    });
  }

  #greet(): void {
    this.#epoch = randomInt(1, 65_536);
    const nonce = randomBytes(nonceBytes);
    this.#nonces.set(this.#epoch, nonce);
    this.streams.clear();
    this.#last = 0;
    this.#socket.write(Buffer.alloc(paddingBytes));
    this.send(FrameType.HELLO, new RecordWriter().bytes(magic).raw(nonce).u16(1).finish(), 0);
  }

  send(type: number, payload: Uint8Array, stream: number): void {
    if (!this.closed) this.#socket.write(encodeFrame({ type, flags: 0, epoch: this.#epoch, stream }, payload));
  }

  /** Bytes as they are. */
  sendRaw(bytes: Uint8Array): void {
    if (!this.closed) this.#socket.write(bytes);
  }

  close(): void {
    this.#socket.destroy();
  }

  /** The first stream, now or to come, whose request is such. */
  async next(isWanted: (request: PeerStream["request"]) => boolean): Promise<PeerStream> {
    return waitFor("a request of the gateway", () => {
      if (this.fault !== undefined) throw this.fault;
      return [...this.streams.values()].find(({ request }) => isWanted(request));
    });
  }

  #take(type: number, _flags: number, epoch: number, number: number, payload: Buffer): void {
    if (epoch === 0 && type === FrameType.WELCOME) {
      assert.deepEqual(payload.subarray(0, nonceBytes), Buffer.alloc(nonceBytes));
      this.begun++;
    }
    if (epoch !== this.#epoch) return;
    if (type === FrameType.WELCOME) {
      assert.deepEqual(payload.subarray(0, nonceBytes), this.#nonces.get(epoch));
      const fields = new RecordReader(payload, nonceBytes);
      assert.deepEqual([fields.u16(), fields.str()], [1, "capsule-gateway/0.1.0"]);
      this.#welcomed = epoch;
    } else if (type === FrameType.OPEN) {
      assert.ok(number > this.#last, "numbers of streams rise");
      this.#last = number;
      const send: Send = (kind, bytes, to) => this.send(kind, bytes, to);
      const stream = new PeerStream(number, readRequest(payload), send);
      this.streams.set(number, stream);
      this.onRequest(stream);
      this.emit("request", stream);
    } else this.streams.get(number)?.take(type, payload);
  }
}

function readRequest(payload: Buffer): PeerStream["request"] {
  const fields = new RecordReader(payload);
  const verb = fields.u16();
  if (verb === connectVerb) {
    const octets = Buffer.alloc(4);
    octets.writeUInt32BE(fields.u32());
    const request = { kind: "connect", address: octets.join("."), port: fields.u16() } as const;
    fields.finish();
    return request;
  }
  assert.equal(verb, resolveVerb);
  const request = { kind: "resolve", name: fields.str(), type: fields.u16() } as const;
  fields.finish();
  return request;
}
