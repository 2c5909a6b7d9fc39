/**
 * The host's end of a connection without a socket: opens one call of each kind, receives a guest's bytes, and asserts
 * the invariants that hold for any bytes.
 */
import assert from "node:assert/strict";
import { setImmediate as turn } from "node:timers/promises";
import type { ListingSink, OutputSink } from "../../src/agent/agent.ts";
import { Channel } from "../../src/agent/channel.ts";
import { downloadFile } from "../../src/agent/download.ts";
import { FrameType, headerBytes } from "../../src/agent/frames.ts";
import { Listing } from "../../src/agent/listing.ts";
import type { Pipe } from "../../src/agent/pipe.ts";
import { readProcess } from "../../src/agent/process-records.ts";
import { commandOutputs, OutputStream, Terminal } from "../../src/agent/process-streams.ts";
import * as protocol from "../../src/agent/protocol.ts";
import { ProtocolError } from "../../src/agent/records.ts";
import { FileUpload } from "../../src/agent/upload.ts";
import { CapsuleError } from "../../src/wire/errors.ts";
import { Collected } from "../collected.ts";
import { streams } from "./inputs.ts";

export const epoch = 0x1234;
const content = Buffer.alloc(300_000);
const listLimit = 10;
const { Verb, request } = protocol;
const command = { cmd: "x", args: [] };

/** Discards written bytes and counts them. */
class NullPipe {
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

export class HostEnd {
  readonly #pipe = new NullPipe();
  readonly #channel = new Channel(this.#pipe as unknown as Pipe, epoch, {
    silenceMs: 1e6,
    verbs: protocol.unlistedVerbs,
  });
  readonly #outcomes: string[] = [];
  readonly #ends: Promise<unknown>[] = [];
  #settled = 0;
  #deliveredBytes = 0;
  #received: Buffer = Buffer.alloc(0);

  /**
   * Opens the calls, receives the bytes in chunks, and disconnects. Returns the outcomes of all calls, which must not
   * depend on the chunks. `isPausing`: whether waiting calls run before the next chunk.
   */
  static async run(bytes: Buffer, sizes: () => number, isPausing = () => false): Promise<string[]> {
    const host = new HostEnd();
    host.#open();
    const requestBytes = host.#pipe.writtenBytes;
    await host.#receive(bytes, sizes, isPausing);
    // Each grant follows at least as many received bytes as it has itself. The upload and the keystrokes are sent once.
    const room = bytes.length + 2 * content.length + 12 * 64;
    assert.ok(host.#pipe.writtenBytes - requestBytes <= room, `${host.#pipe.writtenBytes} bytes for ${bytes.length}`);
    assert.ok(host.#deliveredBytes <= bytes.length, "more was delivered than received");
    await host.#disconnect();
    return host.#outcomes;
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
    this.#listing("processes", (sink) => {
      const decoder = { readItem: readProcess, bounds, sink };
      return Listing.of(channel, Verb.PROCESSES, request(Verb.PROCESSES), decoder);
    });
    this.#listing("list", (sink) => {
      const list = protocol.listRequest("/", 1, listLimit);
      return Listing.of(channel, Verb.LIST, list, { readItem: protocol.readEntry, bounds, sink });
    });
    this.#call("mkdir", channel.call(Verb.MKDIR, request(Verb.MKDIR).str("/x"), protocol.decodeEntry));
    this.#call("read", this.#read(channel));
    const upload = new FileUpload(channel, "/x", undefined);
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

  async #receive(bytes: Buffer, sizes: () => number, isPausing: () => boolean): Promise<void> {
    this.#received = bytes;
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

  async #disconnect(): Promise<void> {
    this.#channel.lost(undefined);
    const reason = await this.#channel.closed;
    assert.ok(reason instanceof CapsuleError && reason.code === "agent_error", String(reason));
    assert.ok(
      reason.cause === undefined || reason.cause instanceof ProtocolError,
      `another cause than a protocol violation: ${reason.cause}`,
    );
    this.#outcomes.push(`closed ${reason.message}`);
    // A file's body is a Node stream, which ends some ticks later.
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
      (value) => this.#outcomes.push(`${name} ${JSON.stringify(value)}`),
      (error: Error) => this.#outcomes.push(`${name} failed ${error.message}`),
    );
  }

  #listing(name: "processes" | "list", listing: (sink: ListingSink<unknown>) => Promise<void>): void {
    const found = new Collected<unknown>();
    this.#call(
      name,
      listing(found).then(() => {
        assert.ok(found.items.length <= listLimit, `${found.items.length} items`);
        return found.items;
      }),
    );
  }

  async #read(channel: Channel): Promise<number> {
    const { body } = await downloadFile(channel, "/x");
    let bytes = 0;
    for await (const chunk of body) bytes += chunk.length;
    return bytes;
  }

  #sink(name: "run" | "pty" | "attach", consume: (bytes: number) => void = () => {}): OutputSink {
    let hasStarted = false;
    let hasEnded = false;
    let bytes = 0;
    const { promise, resolve } = Promise.withResolvers<string>();
    this.#call(name, promise);
    const end = (how: string) => {
      assert.ok(!hasEnded, `${name} ended twice`);
      hasEnded = true;
      resolve(`${bytes} bytes, ${how}`);
    };
    return {
      started: ({ pid, tag }) => {
        assert.ok(!hasStarted && !hasEnded, `${name} started twice, or after its end`);
        hasStarted = true;
        this.#outcomes.push(`${name} started ${pid} ${tag}`);
      },
      output: (_channel, chunk) => {
        assert.ok(hasStarted && !hasEnded, `${name} had output before its start or after its end`);
        bytes += chunk.length;
        assert.ok(
          name !== "run" || bytes <= protocol.limits.windowBytes,
          "more output than the window without consumption",
        );
        this.#deliveredBytes += chunk.length;
        consume(chunk.length);
      },
      exited: ({ exitCode }) => {
        assert.ok(hasStarted, `${name} ended without a start`);
        assert.ok(this.#wasReceived(FrameType.RESULT, streams[name]), `${name}: an exit that was not received`);
        end(`exit ${exitCode}`);
      },
      failed: (error) => end(error.message),
    };
  }

  /** True when the received bytes contain a header of this type for this stream. */
  #wasReceived(type: number, stream: number): boolean {
    const header = Buffer.alloc(headerBytes - 4);
    header[0] = type;
    header.writeUInt16LE(epoch, 2);
    header.writeUInt32LE(stream, 4);
    return this.#received.includes(header);
  }
}

function never(): void {
  assert.fail("a handler of a cancelled stream was called");
}
