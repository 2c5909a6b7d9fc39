/** The real agent with a host that violates the protocol: its accounting stays right, and it accepts the next HELLO. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import net from "node:net";
import { after, before, test } from "node:test";
import { AgentProcess } from "../../test/agent-process.ts";
import { Transcript } from "../../test/fakes/transcript.ts";
import { within } from "../../test/wait-for.ts";
import type { Agent } from "./agent.ts";
import { AgentFailure } from "./failure.ts";
import { encodeFrame, FrameParser, FrameType, headerBytes } from "./frames.ts";
import { emptyRecord, hello, limits, paddingBytes, ptyRequest, request, takenEvent, Verb } from "./protocol.ts";
import type { RecordWriter } from "./records.ts";

const { HELLO, WELCOME, OPEN, DATA, EVENT, CANCEL } = FrameType;
/** Credit is returned in steps of this size. */
const smallChunkBytes = 4_096;
const size = { cols: 80, rows: 24 };

let guest: AgentProcess;
let agent: Agent;
before(async () => {
  guest = await AgentProcess.start();
  agent = await guest.connect();
  await guest.wake(agent);
});
after(() => guest[Symbol.asyncDispose]());

/** A host that sends arbitrary frames. */
class RawHost implements Disposable {
  readonly #socket: net.Socket;
  readonly #parser = new FrameParser((type, _flags, epoch, _stream, payload) => this.#take(type, epoch, payload));
  readonly #waiting: { isMet: () => boolean; resolve: () => void }[] = [];
  #epoch = 0;
  #welcomedEpoch = 0;
  #dataBytes = 0;

  constructor(socketPath: string) {
    this.#socket = net.connect(socketPath);
    this.#socket.on("data", (bytes: Buffer) => this.#parser.push(bytes));
  }

  /** Resolves when the agent has answered. */
  async sendHello(epoch: number, ...before: Buffer[]): Promise<void> {
    const frames = [...before, Buffer.alloc(paddingBytes)];
    this.#epoch = epoch;
    frames.push(this.frame(HELLO, 0, hello(randomBytes(16), 1)));
    this.#socket.write(Buffer.concat(frames));
    await this.#until("the agent's answer", () => this.#welcomedEpoch === epoch);
  }

  async heard(dataBytes: number): Promise<void> {
    await this.#until(`${dataBytes} bytes of output`, () => this.#dataBytes >= dataBytes);
  }

  say(...frames: Buffer[]): void {
    this.#socket.write(Buffer.concat(frames));
  }

  frame(type: number, stream: number, payload: Uint8Array): Buffer {
    return encodeFrame({ type, flags: 0, epoch: this.#epoch, stream }, payload);
  }

  open(stream: number, request: RecordWriter): Buffer {
    return this.frame(OPEN, stream, request.finish().subarray(headerBytes));
  }

  [Symbol.dispose](): void {
    this.#socket.destroy();
  }

  async #until(what: string, isMet: () => boolean): Promise<void> {
    if (isMet()) return;
    const met = new Promise<void>((resolve) => this.#waiting.push({ isMet, resolve }));
    const gone = once(this.#socket, "close").then(() => assert.fail("the agent hung up"));
    await within(what, Promise.race([met, gone]));
  }

  #take(type: number, epoch: number, payload: Buffer): void {
    if (type === WELCOME) this.#welcomedEpoch = epoch;
    if (type === DATA) this.#dataBytes += payload.length;
    for (const { isMet, resolve } of this.#waiting) if (isMet()) resolve();
  }
}

test("a stream id is reused while frames of its first use are in flight", async () => {
  using host = new RawHost(guest.socketPath);
  await host.sendHello(9);
  const script = `stty raw -echo; head -c ${2 * limits.windowBytes} /dev/zero; exec sleep 300`;
  host.say(host.open(5, ptyRequest({ cmd: "sh", args: ["-c", script], tag: "again" }, size)));
  await host.heard(limits.windowBytes - smallChunkBytes);
  // The whole replay is pending, so the answer to each CONNECT is larger than the pipe's buffer.
  const connect = host.open(5, request(Verb.CONNECT).str("again"));
  const cancel = host.frame(CANCEL, 5, emptyRecord);
  const sent = [host.frame(EVENT, 5, takenEvent(0)), cancel, connect, cancel, connect];
  await host.sendHello(10, ...sent);
  using next = new RawHost(guest.socketPath);
  await next.sendHello(11);
});

test("input for a program that does not read is bounded over all clients", async () => {
  agent = await guest.connect();
  const first = new Transcript();
  const script = "stty raw -echo; echo ready; exec sleep 300";
  const terminal = first.of(agent.pty({ cmd: "sh", args: ["-c", script] }, size, first));
  await first.until((it) => it.text("pty").includes("ready"));
  const { tag } = await first.process.promise;
  const paste = Buffer.alloc(limits.windowBytes, "x");
  const clients: Transcript[] = [];
  while (clients.length < 100 && clients.every(({ ends }) => ends === 0)) {
    const client = new Transcript();
    clients.push(client);
    client.of(agent.connect(tag, client)).write(paste);
    await agent.probe();
  }
  const refused = (error: unknown) => error instanceof AgentFailure && error.failure === "too_many";
  await assert.rejects(clients.at(-1)!.exit(), refused);
  assert.equal(clients.length, 17, "the sum of 4 MiB, and one window more");
  terminal.stop();
  assert.equal((await first.exit()).exitCode, 137);
});
