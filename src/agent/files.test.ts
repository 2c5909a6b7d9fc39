/** Listings, downloads and uploads with a scripted guest: order and flow control. */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import fc from "fast-check";
import { entriesOf, processesOf } from "../../test/collected.ts";
import { FakeGuest, type HostFrame } from "../../test/fakes/fake-guest.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { GuestProcess } from "./agent.ts";
import { connectAgent } from "./connection.ts";
import { FrameType } from "./frames.ts";
import { emptyRecord, endRecord, limits, windowRecord } from "./protocol.ts";
import { RecordWriter } from "./records.ts";

const { OPEN, DATA, END, WINDOW, EVENT, RESULT, FAIL, CANCEL } = FrameType;
const isOpen = (frame: HostFrame) => frame.type === OPEN;
const openedEvent = (size: number) => new RecordWriter().u16(32).u64(BigInt(size)).finish();
const count = (items: number) => new RecordWriter().u32(items).finish();
const noSpace = new RecordWriter().str("no_space").str("the disk is full").finish();

function hasCode(code: string): (error: unknown) => boolean {
  return (error) => error instanceof CapsuleError && error.code === code;
}

async function connected(onFrame?: (frame: HostFrame, guest: FakeGuest) => void) {
  const guest = await FakeGuest.listen(onFrame ? { onFrame } : {});
  const agent = await connectAgent(guest.socketPath, { deadlineMs: 60_000 });
  return {
    guest,
    agent,
    [Symbol.asyncDispose]: async () => {
      agent.close();
      await guest[Symbol.asyncDispose]();
    },
  };
}

describe("a listing", () => {
  const anyProcess = fc.record(
    {
      pid: fc.nat(0xffff_ffff),
      tag: fc.string({ maxLength: 20 }),
      cmd: fc.string({ unit: "grapheme", maxLength: 60 }),
      args: fc.array(fc.string({ maxLength: 500 }), { maxLength: 30 }),
      user: fc.string({ maxLength: 20 }),
      startedAtMs: fc.nat(),
      kind: fc.constantFrom("other", "exec", "pty"),
    },
    { noNullPrototype: true },
  );
  const kinds = ["other", "exec", "pty"];
  const ofRoot = { tag: "", user: "root", startedAtMs: 7, kind: "other" } as const;
  const put = (to: RecordWriter, { pid, tag, cmd, args, ...more }: Required<GuestProcess>): RecordWriter =>
    to.u32(pid).str(tag).str(cmd).strs(args).str(more.user).u64(BigInt(more.startedAtMs)).u8(kinds.indexOf(more.kind));

  it("is decoded from any chunks", async () => {
    const processes = fc.sample(anyProcess, { numRuns: 500, seed: 5 });
    const huge = { ...ofRoot, pid: 1, cmd: "x", args: Array.from({ length: 1_000 }, (_, i) => `${i}`.repeat(300)) };
    const listed = [...processes, huge, ...processes];
    const bytes = new RecordWriter();
    for (const item of listed) put(bytes, item);
    const all = bytes.bare();
    for (const pieceBytes of [997, 65_536]) {
      await using peer = await connected();
      const answer = processesOf(peer.agent);
      await peer.guest.heard(isOpen);
      for (let at = 0; at < all.length; at += pieceBytes) {
        const piece = all.subarray(at, at + pieceBytes);
        peer.guest.frame(DATA, 1, piece);
        await peer.guest.granted(1, at + piece.length);
      }
      peer.guest.frame(RESULT, 1, count(listed.length));
      assert.deepEqual(await answer, listed);
    }
  });

  it("longer than its limit is refused, and the connection stays open", async () => {
    const entry = new RecordWriter()
      .str("a")
      .str("/a")
      .u8(0)
      .u64(1n)
      .u32(0o100644)
      .str("r")
      .str("r")
      .u64(9n)
      .u8(0)
      .bare();
    await using peer = await connected((frame, guest) => {
      if (!isOpen(frame)) return;
      guest.frame(DATA, frame.stream, Buffer.concat([entry, entry, entry]));
      guest.frame(RESULT, frame.stream, count(3));
    });
    await assert.rejects(entriesOf(peer.agent, "/", 1, 2), hasCode("invalid_request"));
    await peer.guest.heard((frame) => frame.type === CANCEL);
    const entries = await entriesOf(peer.agent, "/", 1, 3);
    assert.equal(entries.length, 3);
    assert.deepEqual(entries[0]?.target, null);
  });

  it("that its receiver refuses is cancelled, and the connection stays open", async () => {
    const refusal = new Error("no room");
    const refuse = () => {
      throw refusal;
    };
    for (const sink of [
      { item: refuse, reserve() {} },
      { item() {}, reserve: refuse },
    ]) {
      await using peer = await connected((frame, guest) => {
        if (!isOpen(frame)) return;
        guest.frame(DATA, frame.stream, put(new RecordWriter(), { ...ofRoot, pid: 1, cmd: "x", args: [] }).bare());
        const huge = put(new RecordWriter(), { ...ofRoot, pid: 2, cmd: "y".repeat(100_000), args: [] }).bare();
        guest.frame(DATA, frame.stream, huge.subarray(0, 65_000));
        guest.frame(DATA, frame.stream, huge.subarray(65_000));
        guest.frame(RESULT, frame.stream, count(2));
      });
      await assert.rejects(peer.agent.processes(sink), refusal);
      await peer.guest.heard((frame) => frame.type === CANCEL);
      assert.equal((await processesOf(peer.agent)).length, 2);
    }
  });

  it("with a wrong count or an incomplete last item ends the connection", async () => {
    for (const [bytes, items] of [
      [Buffer.alloc(0), 1],
      [Buffer.alloc(29), 2], // a process whose fields are all 0
      [Buffer.alloc(28), 1],
    ] as const) {
      await using peer = await connected((frame, guest) => {
        if (!isOpen(frame)) return;
        if (bytes.length > 0) guest.frame(DATA, frame.stream, bytes);
        guest.frame(RESULT, frame.stream, count(items));
      });
      await assert.rejects(processesOf(peer.agent), hasCode("agent_error"));
      await peer.agent.closed;
    }
  });
});

describe("reading a file", () => {
  it("without a reader receives no more than a window", async () => {
    await using peer = await connected();
    const opened = peer.agent.read("/f");
    await peer.guest.heard(isOpen);
    peer.guest.frame(EVENT, 1, openedEvent(10 * limits.windowBytes));
    for (let i = 0; i < 4; i++) peer.guest.frame(DATA, 1, Buffer.alloc(65_536, i));
    const { size, body } = await opened;
    assert.equal(size, 10 * limits.windowBytes);
    await new Promise((resolve) => body.once("readable", resolve));
    const probe = peer.agent.probe();
    const asked = await peer.guest.heard((frame) => isOpen(frame) && frame.stream === 2);
    peer.guest.frame(RESULT, asked.stream, emptyRecord);
    await probe;
    assert.ok(!peer.guest.frames.some((frame) => frame.type === WINDOW), "no credit before a byte was read");
    const chunks: Buffer[] = [];
    body.on("data", (chunk: Buffer) => chunks.push(chunk));
    await peer.guest.heard((frame) => frame.type === WINDOW);
    peer.guest.frame(DATA, 1, Buffer.alloc(100, 9));
    peer.guest.frame(END, 1, endRecord(4 * 65_536 + 100));
    peer.guest.frame(RESULT, 1, emptyRecord);
    await new Promise((resolve) => body.once("end", resolve));
    const expected = [...[0, 1, 2, 3].map((i) => Buffer.alloc(65_536, i)), Buffer.alloc(100, 9)];
    assert.ok(Buffer.concat(chunks).equals(Buffer.concat(expected)));
  });

  it("fails its body when it fails half-way, and does not end it", async () => {
    await using peer = await connected((frame, guest) => {
      if (!isOpen(frame)) return;
      guest.frame(EVENT, frame.stream, openedEvent(100));
      guest.frame(DATA, frame.stream, Buffer.alloc(50));
      guest.frame(FAIL, frame.stream, new RecordWriter().str("internal").str("the disk is broken").finish());
    });
    const { body } = await peer.agent.read("/f");
    await assert.rejects(body.toArray(), /the disk is broken/);
  });

  it("is cancelled when its body is destroyed", async () => {
    await using peer = await connected((frame, guest) => {
      if (isOpen(frame)) guest.frame(EVENT, frame.stream, openedEvent(100));
    });
    const { body } = await peer.agent.read("/f");
    body.destroy();
    assert.equal((await peer.guest.heard((frame) => frame.type === CANCEL)).stream, 1);
  });
});

describe("an upload", () => {
  it("waits for credit, and completes with the guest's result", async () => {
    await using peer = await connected();
    const upload = peer.agent.write("/f");
    const bytes = Buffer.alloc(limits.windowBytes + 1, 7);
    let written = false;
    const writing = upload.write(bytes).then(() => {
      written = true;
    });
    await peer.guest.sent(1, limits.windowBytes);
    assert.equal(written, false);
    await assert.rejects(upload.write(bytes), TypeError);
    peer.guest.frame(WINDOW, 1, windowRecord(65_536));
    await writing;
    const ending = upload.end();
    const end = await peer.guest.heard((frame) => frame.type === END);
    assert.deepEqual(end.payload, endRecord(bytes.length));
    peer.guest.frame(RESULT, 1, endRecord(bytes.length));
    assert.deepEqual(await ending, { bytes: bytes.length });
    await assert.rejects(upload.write(bytes), TypeError);
  });

  it("stops its writer as soon as the guest refuses", async () => {
    await using peer = await connected();
    const upload = peer.agent.write("/f");
    const writing = assert.rejects(upload.write(Buffer.alloc(2 * limits.windowBytes)), hasCode("no_space"));
    await peer.guest.heard(isOpen);
    peer.guest.frame(FAIL, 1, noSpace);
    await writing;
    await assert.rejects(upload.write(Buffer.alloc(1)), hasCode("no_space"));
    await assert.rejects(upload.end(), hasCode("no_space"));
  });

  it("acknowledged with another length ends the connection", async () => {
    await using peer = await connected((frame, guest) => {
      if (frame.type === END) guest.frame(RESULT, frame.stream, endRecord(4));
    });
    const upload = peer.agent.write(undefined);
    await upload.write(Buffer.alloc(5));
    await assert.rejects(upload.end(), TypeError);
    upload.target("/f");
    await assert.rejects(upload.end(), hasCode("agent_error"));
    await peer.agent.closed;
  });

  it("shares the pipe with other streams, and stops when cancelled", async () => {
    await using peer = await connected((frame, guest) => {
      if (frame.type === DATA) guest.frame(WINDOW, frame.stream, windowRecord(frame.payload.length));
      if (frame.type === END) guest.frame(RESULT, frame.stream, frame.payload);
    });
    const sizeBytes = 3_000_001;
    const uploads = Array.from({ length: 8 }, (_, i) => peer.agent.write(`/${i}`));
    const abandoned = peer.agent.write("/x");
    const writing = assert.rejects(abandoned.write(Buffer.alloc(sizeBytes)), /abandoned/);
    const ends = uploads.map(async (upload) => {
      await upload.write(Buffer.alloc(sizeBytes));
      return upload.end();
    });
    abandoned.cancel();
    await writing;
    for (const end of await Promise.all(ends)) assert.deepEqual(end, { bytes: sizeBytes });
  });
});
