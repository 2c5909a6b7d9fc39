/**
 * The host's end of a connection without a socket: one call of every shape is opened, a guest's bytes are poured in,
 * and what must hold whatever they are is asserted.
 */
import assert from "node:assert/strict";
import { setImmediate as turn } from "node:timers/promises";
import type { OutputSink } from "../../src/agent/agent.ts";
import { Channel } from "../../src/agent/channel.ts";
import { FileDownload } from "../../src/agent/download.ts";
import { FrameType, headerBytes } from "../../src/agent/frames.ts";
import { Listing } from "../../src/agent/listing.ts";
import type { Pipe } from "../../src/agent/pipe.ts";
import { commandOutputs, OutputStream, Terminal } from "../../src/agent/process-streams.ts";
import * as protocol from "../../src/agent/protocol.ts";
import { ProtocolError } from "../../src/agent/records.ts";
import { FileUpload } from "../../src/agent/upload.ts";
import { CapsuleError } from "../../src/wire/errors.ts";
import { streams } from "./story.ts";

export const epoch = 0x1234;
const content = Buffer.alloc(300_000);
const listLimit = 10;
const { Verb, request } = protocol;
const command = { cmd: "x", args: [] };

/** Takes everything, and counts. */
class Sinkhole {
  readonly congested = false;
  readonly queuedBytes = 0;
  writtenBytes = 0;
  frames = 0;
  isDestroyed = false;

  write(bytes: Uint8Array): void {
    this.writtenBytes += bytes.length;
    this.frames++;
  }

  destroy(): void {
    this.isDestroyed = true;
  }
}

export class Line {
  readonly #pipe = new Sinkhole();
  readonly #channel = new Channel(this.#pipe as unknown as Pipe, epoch, { silenceMs: 1e6 });
  readonly #heard: string[] = [];
  readonly #ends: Promise<unknown>[] = [];
  #settled = 0;
  #keptBytes = 0;
  #poured: Buffer = Buffer.alloc(0);

  /**
   * Opens the calls, pours the bytes in pieces, cuts the line; what everyone heard, in words that pieces do not change.
   * `isPausing`: whether those who wait for what has come get a turn before the next piece.
   */
  static async hear(bytes: Buffer, sizes: () => number, isPausing = () => false): Promise<string[]> {
    const line = new Line();
    line.#open();
    const askedBytes = line.#pipe.writtenBytes;
    await line.#pour(bytes, sizes, isPausing);
    // Every grant answers at least as many bytes of data as it has itself; the upload and the keys are sent once.
    const room = bytes.length + 2 * content.length + 12 * 64;
    assert.ok(line.#pipe.writtenBytes - askedBytes <= room, `${line.#pipe.writtenBytes} bytes for ${bytes.length}`);
    assert.ok(line.#keptBytes <= bytes.length, "more was delivered than was said");
    await line.#cut();
    return line.#heard;
  }

  #open(): void {
    const channel = this.#channel;
    new OutputStream(
      channel,
      Verb.EXEC,
      protocol.execRequest(command, "foreground"),
      commandOutputs,
      this.#sink("run"),
    );
    this.#call("probe", channel.call(Verb.PROBE, request(Verb.PROBE), protocol.decodeEmpty));
    this.#call("start", channel.call(Verb.EXEC, protocol.execRequest(command, "background"), protocol.decodeStarted));
    const bounds = { items: listLimit, bytes: 100_000 };
    this.#listing(
      "processes",
      Listing.of(channel, Verb.PROCESSES, request(Verb.PROCESSES), protocol.readProcess, bounds),
    );
    const list = protocol.listRequest("/", 1, listLimit);
    this.#listing("list", Listing.of(channel, Verb.LIST, list, protocol.readEntry, bounds));
    this.#call("mkdir", channel.call(Verb.MKDIR, request(Verb.MKDIR).str("/x"), protocol.decodeEntry));
    this.#call("read", this.#read(channel));
    const upload = new FileUpload(channel, "/x");
    this.#call(
      "upload",
      upload.write(content).then(() => upload.end()),
    );
    const pty = Terminal.start(
      channel,
      command,
      { cols: 80, rows: 24 },
      this.#sink("pty", (n) => pty.consumed(n)),
    );
    pty.write(content);
    this.#call("freeze", channel.call(Verb.FREEZE, request(Verb.FREEZE), protocol.decodeFrozen));
    const attach = protocol.selectorRequest(Verb.ATTACH, { pid: 1 });
    const attached: OutputStream = new OutputStream(
      channel,
      Verb.ATTACH,
      attach,
      commandOutputs,
      this.#sink("attach", (n) => attached.consumed(n)),
    );
    const silent: OutputSink = { started: never, output: never, exited: never, failed: never };
    new OutputStream(channel, Verb.EXEC, protocol.execRequest(command, "foreground"), commandOutputs, silent).cancel();
  }

  async #pour(bytes: Buffer, sizes: () => number, isPausing: () => boolean): Promise<void> {
    this.#poured = bytes;
    for (let at = 0; at < bytes.length && !this.#pipe.isDestroyed; ) {
      const space = this.#channel.space();
      assert.ok(space.length > 0, "there is always space");
      const length = Math.min(sizes(), space.length, bytes.length - at);
      space.set(bytes.subarray(at, at + length));
      this.#channel.filled(length);
      at += length;
      if (isPausing()) await turn();
    }
  }

  async #cut(): Promise<void> {
    this.#channel.lost(undefined);
    const reason = await this.#channel.closed;
    assert.ok(reason instanceof CapsuleError && reason.code === "agent_error", String(reason));
    assert.ok(
      reason.cause === undefined || reason.cause instanceof ProtocolError,
      `not the guest's fault: ${reason.cause}`,
    );
    this.#heard.push(`closed ${reason.message}`);
    // The body of a file is a stream of Node's, which takes a few turns to end.
    for (let turns = 0; this.#settled < this.#ends.length && turns < 20; turns++) await turn();
    assert.equal(this.#settled, this.#ends.length, "a call that never ends");
    for (const end of await Promise.allSettled(this.#ends)) {
      if (end.status === "rejected" && !(end.reason instanceof CapsuleError)) throw end.reason;
    }
  }

  #call(name: string, answer: Promise<unknown>): void {
    const settled = answer.finally(() => this.#settled++);
    this.#ends.push(settled);
    settled.then(
      (value) => this.#heard.push(`${name} ${JSON.stringify(value)}`),
      (error: Error) => this.#heard.push(`${name} failed ${error.message}`),
    );
  }

  #listing(name: "processes" | "list", items: Promise<unknown[]>): void {
    this.#call(
      name,
      items.then((found) => {
        assert.ok(found.length <= listLimit, `${found.length} items`);
        return found;
      }),
    );
  }

  async #read(channel: Channel): Promise<number> {
    const { body } = await FileDownload.of(channel, "/x");
    let bytes = 0;
    for await (const chunk of body) bytes += chunk.length;
    return bytes;
  }

  #sink(name: "run" | "pty" | "attach", consume: (bytes: number) => void = () => {}): OutputSink {
    let hasStarted = false;
    let isOver = false;
    let bytes = 0;
    const { promise, resolve } = Promise.withResolvers<string>();
    this.#call(name, promise);
    const end = (how: string) => {
      assert.ok(!isOver, `${name} ended twice`);
      isOver = true;
      resolve(`${bytes} bytes, ${how}`);
    };
    return {
      started: ({ pid, tag }) => {
        assert.ok(!hasStarted && !isOver, `${name} started twice, or after its end`);
        hasStarted = true;
        this.#heard.push(`${name} started ${pid} ${tag}`);
      },
      output: (_channel, chunk) => {
        assert.ok(hasStarted && !isOver, `${name} spoke before its start or after its end`);
        bytes += chunk.length;
        assert.ok(name !== "run" || bytes <= protocol.limits.windowBytes, "nobody takes it, and more comes");
        this.#keptBytes += chunk.length;
        consume(chunk.length);
      },
      exited: ({ exitCode }) => {
        assert.ok(hasStarted, `${name} ended without a start`);
        assert.ok(this.#wasSaid(FrameType.RESULT, streams[name]), `${name}: an exit that nobody reported`);
        end(`exit ${exitCode}`);
      },
      failed: (error) => end(error.message),
    };
  }

  /** Does a header of this type for this stream stand anywhere in what was poured? */
  #wasSaid(type: number, stream: number): boolean {
    const header = Buffer.alloc(headerBytes - 4);
    header[0] = type;
    header.writeUInt16LE(epoch, 2);
    header.writeUInt32LE(stream, 4);
    return this.#poured.includes(header);
  }
}

function never(): void {
  assert.fail("a cancelled stream was heard of");
}
