/** Downloads in any frame lengths, read in different ways. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { type Readable, Writable } from "node:stream";
import { finished } from "node:stream/promises";
import { describe, it } from "node:test";
import { FakeGuest } from "../../test/fakes/fake-guest.ts";
import { waitFor } from "../../test/wait-for.ts";
import type { Agent } from "./agent.ts";
import { connectAgent } from "./connection.ts";
import { encodeFrame, FrameType } from "./frames.ts";
import { emptyRecord, endRecord, limits, Verb } from "./protocol.ts";
import { RecordWriter } from "./records.ts";

const { OPEN, DATA, END, EVENT, RESULT } = FrameType;
const stream = 1;

/** A file of `size` bytes that the guest has opened and not yet sent. */
async function opened(size: number) {
  const guest = await FakeGuest.listen({
    onFrame: (frame, guest) => {
      if (frame.type !== OPEN) return;
      if (frame.payload.readUInt16LE() === Verb.PROBE) guest.frame(RESULT, frame.stream, emptyRecord);
      else guest.frame(EVENT, frame.stream, new RecordWriter().u16(32).u64(BigInt(size)).finish());
    },
  });
  const agent: Agent = await connectAgent(guest.socketPath, { deadlineMs: 60_000 });
  const { body } = await agent.read("/x");
  return {
    guest,
    agent,
    body,
    [Symbol.asyncDispose]: async () => {
      agent.close();
      await guest[Symbol.asyncDispose]();
    },
  };
}

/** The content in frames of these lengths, repeated cyclically. */
function cut(guest: FakeGuest, content: Buffer, lengths: number[]): Buffer {
  const frames: Buffer[] = [];
  for (let at = 0, i = 0; at < content.length; i++) {
    const part = content.subarray(at, at + lengths[i % lengths.length]!);
    frames.push(encodeFrame({ type: DATA, flags: 0, epoch: guest.epoch, stream }, part));
    at += part.length;
  }
  return Buffer.concat(frames);
}

function complete(guest: FakeGuest, size: number): void {
  guest.frame(END, stream, endRecord(size));
  guest.frame(RESULT, stream, emptyRecord);
}

async function iterated(body: Readable): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of body) chunks.push(chunk);
  return Buffer.concat(chunks);
}

/** Piped to a slow destination that, like a socket, keeps no buffer after its callback. */
async function piped(body: Readable): Promise<Buffer> {
  const chunks: Buffer[] = [];
  const copy = new Writable({
    highWaterMark: 10_000,
    write(chunk: Buffer, _encoding, done) {
      setImmediate(() => {
        chunks.push(Buffer.from(chunk));
        done();
      });
    },
  });
  body.pipe(copy);
  await finished(copy);
  return Buffer.concat(chunks);
}

describe("a download from a guest that sends one byte per frame", () => {
  it("is held in a few buffers while it is not read", async () => {
    const content = randomBytes(200_000);
    await using file = await opened(content.length);
    file.guest.say(cut(file.guest, content, [1]));
    complete(file.guest, content.length);
    await file.agent.probe(); // answered behind all of that
    const chunks: Buffer[] = [];
    file.body.on("data", (chunk: Buffer) => chunks.push(chunk));
    await new Promise((resolve) => file.body.on("end", resolve));
    assert.ok(Buffer.concat(chunks).equals(content));
    assert.ok(chunks.length < 10, `${chunks.length} buffers`);
  });
});

describe("a file longer than the window, with a full window received before reading starts,", () => {
  const content = randomBytes(limits.windowBytes + 100_000);
  it("is piped without writing to memory of other buffers", async () => {
    await using file = await opened(limits.windowBytes);
    const kept: Buffer[] = [];
    let written = 0;
    const sink = new Writable({
      write(chunk: Buffer, _encoding, done) {
        // These bytes come from Node's own pool, as a small chunk of the content does.
        kept.push(Buffer.from("kept ".repeat(200)));
        setImmediate(() => {
          written += chunk.length;
          done();
        });
      },
    });
    file.body.pipe(sink);
    let said = 0;
    for (const length of [100, 65_536, 100, 65_536, 100]) {
      file.guest.say(cut(file.guest, content.subarray(said, said + length), [length]));
      said += length;
      await waitFor("the chunk is written", () => written === said);
    }
    complete(file.guest, said);
    await finished(sink);
    assert.ok(kept.length >= 5 && kept.every((bytes) => bytes.toString() === "kept ".repeat(200)));
  });

  for (const [how, read] of Object.entries({ iterated, piped })) {
    for (const lengths of [[65_536], [1_000], [1, 40_000, 7], [65_536, 3]]) {
      it(`is complete in frames of ${lengths} bytes when it is ${how}`, async () => {
        await using file = await opened(content.length);
        file.guest.say(cut(file.guest, content.subarray(0, limits.windowBytes), lengths));
        await file.agent.probe();
        const whole = read(file.body);
        await file.guest.granted(stream, limits.windowBytes);
        for (let at = limits.windowBytes; at < content.length; at += 50_000) {
          await file.guest.granted(stream, at);
          file.guest.say(cut(file.guest, content.subarray(at, at + 50_000), lengths));
        }
        complete(file.guest, content.length);
        assert.ok((await whole).equals(content));
      });
    }
  }
});
