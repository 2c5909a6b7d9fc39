/** An agent on a UNIX socket: it answers HELLO as a real one does, and leaves every other frame to the test. */
import { mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import {
  encodeFrame,
  FrameParser,
  FrameType,
  listVerbsFlag,
  maxPayloadBytes,
  writeHeader,
} from "../../src/agent/frames.ts";
import {
  limits,
  magic,
  nonceBytes,
  protocolVersions,
  speaks,
  Verb,
  type VersionRange,
} from "../../src/agent/protocol.ts";
import { RecordReader, RecordWriter } from "../../src/agent/records.ts";
import { within } from "../wait-for.ts";

export interface HostFrame {
  type: number;
  flags: number;
  stream: number;
  payload: Buffer;
}

export interface FakeGuestOptions {
  /** Sent first on each connection, like bytes of an earlier connection in the pipe. */
  stale?: Uint8Array;
  /** How many HELLOs are ignored at first. */
  deafHellos?: number;
  awake?: boolean;
  /** The versions of the protocol that it speaks. */
  protocols?: VersionRange;
  /** The verbs in its WELCOME, by default those of the host; null: an agent that knows no such list. */
  verbs?: readonly number[] | null;
  /** It ignores a HELLO of any other version. */
  isStrict?: boolean;
  onFrame?: (frame: HostFrame, guest: FakeGuest) => void;
}

export class FakeGuest implements AsyncDisposable {
  readonly socketPath: string;
  readonly frames: HostFrame[] = [];
  hellos = 0;
  /** Versions of the HELLOs. */
  readonly versions: number[] = [];
  epoch = 0;
  connection: net.Socket | undefined;
  /** The state in its next WELCOME. */
  asleep: boolean;
  readonly #options: FakeGuestOptions;
  readonly #server: net.Server;
  readonly #dir: string;
  #waiting: { matches: (frame: HostFrame) => boolean; resolve: (frame: HostFrame) => void }[] = [];

  static async listen(options: FakeGuestOptions = {}): Promise<FakeGuest> {
    const guest = new FakeGuest(await mkdtemp(path.join(tmpdir(), "fake-guest-")), options);
    await new Promise<void>((resolve) => guest.#server.listen(guest.socketPath, resolve));
    return guest;
  }

  private constructor(dir: string, options: FakeGuestOptions) {
    this.#dir = dir;
    this.#options = options;
    this.asleep = options.awake === false;
    this.socketPath = path.join(dir, "agent.sock");
    this.#server = net.createServer((socket) => this.#serve(socket));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.connection?.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
    await rm(this.#dir, { recursive: true });
  }

  /** Sends raw bytes. */
  say(bytes: Uint8Array): void {
    this.connection?.write(bytes);
  }

  frame(type: number, stream: number, payload: Uint8Array, flags = 0): void {
    this.say(encodeFrame({ type, flags, epoch: this.epoch, stream }, payload));
  }

  /** A header that need not match the following payload. */
  header(type: number, stream: number, length: number, flags = 0): void {
    const header = Buffer.alloc(12);
    writeHeader(header, 0, { type, flags, epoch: this.epoch, stream, length });
    this.say(header);
  }

  /** The first frame from the host, past or future, that matches. */
  heard(matches: (frame: HostFrame) => boolean): Promise<HostFrame> {
    const known = this.frames.find(matches);
    if (known) return Promise.resolve(known);
    const next = new Promise<HostFrame>((resolve) => this.#waiting.push({ matches, resolve }));
    return within(() => `a frame: ${matches}`, next);
  }

  /** The host has sent this many data bytes on a stream. */
  async sent(stream: number, bytes: number): Promise<void> {
    await this.heard(() => this.#sum(stream, FrameType.DATA, (frame) => frame.payload.length) >= bytes);
  }

  /** The host's credit has room for one more payload after `bytes` data bytes were sent to it on a stream. */
  async granted(stream: number, bytes: number): Promise<void> {
    const room = () =>
      limits.windowBytes + this.#sum(stream, FrameType.WINDOW, (frame) => frame.payload.readUInt32LE());
    if (room() - bytes < maxPayloadBytes) await this.heard(() => room() - bytes >= maxPayloadBytes);
  }

  #sum(stream: number, type: number, amount: (frame: HostFrame) => number): number {
    const frames = this.frames.filter((frame) => frame.stream === stream && frame.type === type);
    return frames.reduce((sum, frame) => sum + amount(frame), 0);
  }

  #serve(socket: net.Socket): void {
    this.connection?.destroy();
    this.connection = socket;
    socket.on("error", () => {});
    if (this.#options.stale) socket.write(this.#options.stale);
    const parser = new FrameParser((type, flags, epoch, stream, payload) => {
      if (type === FrameType.HELLO) this.#greet(epoch, flags, payload);
      else this.#take({ type, flags, stream, payload: Buffer.from(payload) });
    });
    socket.on("data", (chunk: Buffer) => parser.push(chunk));
  }

  #greet(epoch: number, flags: number, payload: Buffer): void {
    this.hellos++;
    const fields = new RecordReader(payload);
    if (!fields.bytes().equals(magic)) throw new Error("HELLO without its magic");
    const nonce = fields.raw(nonceBytes);
    const version = fields.u16();
    this.versions.push(version);
    const protocols = this.#options.protocols ?? protocolVersions;
    const isIgnored = this.#options.isStrict === true && !speaks(protocols, version);
    if (isIgnored || this.hellos <= (this.#options.deafHellos ?? 0)) return;
    this.epoch = epoch;
    const welcome = new RecordWriter()
      .raw(nonce)
      .u16(Math.min(Math.max(version, protocols.min), protocols.max))
      .str("fake/0")
      .u8(this.asleep ? 0 : 1)
      .u32(1);
    const { verbs = Object.values(Verb) } = this.#options;
    if (flags === listVerbsFlag && verbs !== null) {
      welcome.u32(verbs.length);
      for (const verb of verbs) welcome.u16(verb);
    }
    this.frame(FrameType.WELCOME, 0, welcome.finish());
  }

  #take(frame: HostFrame): void {
    this.frames.push(frame);
    this.#waiting = this.#waiting.filter(({ matches, resolve }) => !matches(frame) || void resolve(frame));
    this.#options.onFrame?.(frame, this);
  }
}
