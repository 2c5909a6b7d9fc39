/** The guest's end of docs/NETWORK-PROTOCOL.md in a test: it opens connections and asks names over a real socket. */
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Duplex } from "node:stream";
import { encodeFrame, FrameParser, FrameType, maxPayloadBytes } from "../../src/agent/frames.ts";
import { decodeCount, decodeFail, emptyRecord, endRecord, windowRecord } from "../../src/agent/protocol.ts";
import { RecordReader, RecordWriter } from "../../src/agent/records.ts";
import { rangeOf } from "../../src/network/destinations.ts";

const firstWindowBytes = 16_384;
const noNonce = Buffer.alloc(16);

export interface PeerAnswer {
  rcode: number;
  records: { type: number; ttl: number; data: Buffer }[];
}

/** A connection that the relay has opened. Destroyed with an error it is reset, and a reset destroys it with the code ECONNRESET. */
export class PeerStream extends Duplex {
  readonly #peer: GatewayPeer;
  readonly id: number;
  #credit = firstWindowBytes;
  #sent = 0;
  #waiting: (() => void) | undefined;
  isClosed = false;

  constructor(peer: GatewayPeer, id: number) {
    super({ allowHalfOpen: true, autoDestroy: false });
    this.#peer = peer;
    this.id = id;
    this.on("error", () => {});
  }

  override _read(): void {}

  override _write(chunk: Buffer, _: string, done: () => void): void {
    let at = 0;
    while (at < chunk.length && this.#credit > 0) {
      const part = chunk.subarray(at, at + Math.min(this.#credit, maxPayloadBytes));
      this.#peer.frame(FrameType.DATA, this.id, part);
      this.#credit -= part.length;
      this.#sent += part.length;
      at += part.length;
    }
    if (at === chunk.length) done();
    else this.#waiting = () => this._write(chunk.subarray(at), _, done);
  }

  override _final(done: () => void): void {
    this.#peer.frame(FrameType.END, this.id, endRecord(this.#sent));
    done();
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    if (!this.isClosed && !(this.readableEnded && this.writableFinished))
      this.#peer.frame(FrameType.RESET, this.id, emptyRecord);
    this.isClosed = true;
    done(error);
  }

  received(type: number, payload: Buffer): void {
    if (type === FrameType.DATA) {
      this.push(Buffer.from(payload));
      if (this.#peer.grants) this.#peer.frame(FrameType.WINDOW, this.id, windowRecord(payload.length));
    } else if (type === FrameType.END) this.push(null);
    else if (type === FrameType.WINDOW) {
      const credit = decodeCount(payload);
      this.#peer.windows.push({ stream: this.id, credit });
      this.#credit += credit;
      const waiting = this.#waiting;
      this.#waiting = undefined;
      waiting?.();
    } else if (type === FrameType.RESET) {
      this.isClosed = true;
      this.destroy(Object.assign(new Error("reset"), { code: "ECONNRESET" }));
    }
  }

  /** Everything until the end, as text. Rejects when it is reset. */
  async text(): Promise<string> {
    let text = "";
    for await (const chunk of this) text += (chunk as Buffer).toString("latin1");
    return text;
  }

  /** "ended" or "reset". */
  async outcome(): Promise<string> {
    return await this.text().then(
      () => "ended",
      () => "reset",
    );
  }
}

export class GatewayPeer {
  readonly socket: Socket;
  readonly #parser: FrameParser;
  #epoch = 0;
  #nextStream = 1;
  readonly #opening = new Map<number, (answer: PeerStream | string) => void>();
  readonly #asking = new Map<number, (answer: PeerAnswer | string) => void>();
  readonly streams = new Map<number, PeerStream>();
  /** Credit that the relay has given. */
  readonly windows: { stream: number; credit: number }[] = [];
  /** False: nothing that arrives is credited. */
  grants = true;
  /** The number of HELLOs so far. */
  hellos = 0;
  readonly #inStep: (() => void)[] = [];

  constructor(socket: Socket) {
    this.socket = socket;
    this.#parser = new FrameParser((type, _flags, epoch, stream, payload) => this.#take(type, epoch, stream, payload));
    socket.on("data", (chunk: Buffer) => this.#parser.push(chunk));
    socket.on("error", () => {});
  }

  /** A peer, and the socket at the relay's end; a paused one is read only by the process that it is handed to. */
  static async pair({ isPaused = false } = {}): Promise<{ peer: GatewayPeer; socket: Socket }> {
    const folder = mkdtempSync(join(tmpdir(), "gateway-"));
    const server = createServer({ allowHalfOpen: true });
    await once(server.listen(join(folder, "port")), "listening");
    const socket = new Socket();
    if (isPaused) socket.pause();
    socket.connect(join(folder, "port"));
    const [[accepted]] = (await Promise.all([once(server, "connection"), once(socket, "connect")])) as [[Socket], []];
    server.close();
    rmSync(folder, { recursive: true });
    return { peer: new GatewayPeer(accepted), socket };
  }

  async inStep(hellos = 1): Promise<void> {
    while (this.hellos < hellos) await new Promise<void>((resolve) => this.#inStep.push(resolve));
  }

  /** The relay has the WELCOME, so no further HELLO of this beginning ends what the peer opens. */
  async settled(): Promise<void> {
    await this.inStep();
    for (let hellos = 0; hellos !== this.hellos; ) {
      hellos = this.hellos;
      await Promise.race([this.resolve("localhost"), this.inStep(hellos + 1)]);
    }
  }

  /** A stream, or the code and message of the failure. */
  connect(address: string, port: number): Promise<PeerStream | string> {
    const record = new RecordWriter().u16(51).u32(rangeOf(address)!.first).u16(port).finish();
    return new Promise((resolve) => this.#opening.set(this.open(record), resolve));
  }

  /** Throws unless the connection is accepted. */
  async connected(address: string, port: number): Promise<PeerStream> {
    const found = await this.connect(address, port);
    if (typeof found === "string") throw new Error(found);
    return found;
  }

  async resolve(name: string, type = 1): Promise<PeerAnswer> {
    const record = new RecordWriter().u16(52).str(name).u16(type).finish();
    const answer = await new Promise<PeerAnswer | string>((resolve) => this.#asking.set(this.open(record), resolve));
    if (typeof answer === "string") throw new Error(answer);
    return answer;
  }

  /** Dotted addresses of an answer, or its rcode. */
  async addresses(name: string): Promise<string[] | number> {
    const { rcode, records } = await this.resolve(name);
    return rcode === 0 ? records.map(({ data }) => [...data].join(".")) : rcode;
  }

  open(record: Uint8Array): number {
    const stream = this.#nextStream++;
    this.frame(FrameType.OPEN, stream, record);
    return stream;
  }

  frame(type: number, stream: number, payload: Uint8Array, epoch = this.#epoch): void {
    this.socket.write(encodeFrame({ type, flags: 0, epoch, stream }, payload));
  }

  /** As a gateway that was killed and begins. */
  begin(): void {
    this.frame(FrameType.WELCOME, 0, new RecordWriter().raw(noNonce).u16(1).str("peer/2").finish(), 0);
  }

  #take(type: number, epoch: number, id: number, payload: Buffer): void {
    if (type === FrameType.HELLO) this.#welcome(epoch, payload);
    else if (type === FrameType.RESULT) {
      const fields = new RecordReader(payload);
      const rcode = fields.u8();
      const records = Array.from({ length: fields.u32() }, () => ({
        type: fields.u16(),
        ttl: fields.u32(),
        data: Buffer.from(fields.bytes()),
      }));
      this.#asking.get(id)?.({ rcode, records });
    } else if (type === FrameType.EVENT) {
      const stream = new PeerStream(this, id);
      this.streams.set(id, stream);
      this.#opening.get(id)?.(stream);
    } else if (type === FrameType.FAIL) {
      const { code, message } = decodeFail(payload);
      this.#opening.get(id)?.(`${code}: ${message}`);
    } else this.streams.get(id)?.received(type, payload);
  }

  #welcome(epoch: number, payload: Buffer): void {
    const fields = new RecordReader(payload);
    fields.bytes();
    this.#epoch = epoch;
    this.#nextStream = 1;
    for (const stream of this.streams.values()) stream.received(FrameType.RESET, emptyRecord);
    this.streams.clear();
    this.frame(FrameType.WELCOME, 0, new RecordWriter().raw(fields.raw(16)).u16(1).str("peer/1").finish());
    this.hellos++;
    for (const resolve of this.#inStep.splice(0)) resolve();
  }
}
