import assert from "node:assert/strict";
import { describe, it } from "node:test";
import fc from "fast-check";
import { decodeNotice } from "./notice.ts";
import { readLongProcess, readProcess } from "./process-records.ts";
import {
  decodeCount,
  decodeEmpty,
  decodeEntry,
  decodeExit,
  decodeFail,
  decodeFrozen,
  decodeOpenedEvent,
  decodeStarted,
  decodeStartedEvent,
  decodeTotal,
  decodeWelcome,
  execRequest,
} from "./protocol.ts";
import { ProtocolError, RecordReader, RecordWriter } from "./records.ts";

const decoders = {
  decodeCount,
  decodeEmpty,
  decodeEntry,
  decodeExit,
  decodeFail,
  decodeFrozen,
  decodeNotice,
  decodeOpenedEvent,
  decodeStarted,
  decodeStartedEvent,
  decodeTotal,
  decodeWelcome: (payload: Buffer) => decodeWelcome(payload, Buffer.alloc(16)),
  readProcess: (payload: Buffer) => readProcess(new RecordReader(payload)),
  readLongProcess: (payload: Buffer) => readLongProcess(new RecordReader(payload)),
};

describe("answers", () => {
  it("of random bytes decode or throw ProtocolError", () => {
    const small = fc.constantFrom(0, 0, 0, 1, 2, 16, 32, 0x7e, 255);
    const payload = fc.oneof(
      fc.uint8Array({ maxLength: 100 }),
      fc.array(small, { maxLength: 60 }).map((a) => Uint8Array.from(a)),
    );
    for (const [name, decode] of Object.entries(decoders)) {
      fc.assert(
        fc.property(payload, (bytes) => {
          try {
            decode(Buffer.from(bytes));
          } catch (error) {
            assert.ok(error instanceof ProtocolError, `${name}: ${error}`);
          }
        }),
        { numRuns: 300 },
      );
    }
  });

  it("that are truncated or too long are refused", () => {
    const entry = new RecordWriter();
    entry
      .str("a")
      .str("/a")
      .u8(2)
      .u64(5n)
      .u32(0o120777)
      .str("root")
      .str("root")
      .u64(0xffff_ffff_ffff_ffffn)
      .optionalStr("b");
    const record = entry.finish();
    assert.deepEqual(decodeEntry(record), {
      name: "a",
      path: "/a",
      type: "symlink",
      size: 5,
      mode: 0o120777,
      owner: "root",
      group: "root",
      mtime: -1,
      target: "b",
    });
    for (let length = 0; length < record.length; length++) {
      assert.throws(() => decodeEntry(record.subarray(0, length)), ProtocolError);
    }
    assert.throws(() => decodeEntry(Buffer.concat([record, Buffer.from([0x7e])])), ProtocolError);
  });

  it("with impossible values are refused", () => {
    const exit = (code: number, signal: number) =>
      new RecordWriter()
        .u32(code >>> 0)
        .u8(signal)
        .u64(5n)
        .finish();
    assert.deepEqual(decodeExit(exit(137, 9)), { exitCode: 137, guestDurationUs: 5 });
    assert.deepEqual(decodeExit(exit(255, 0)), { exitCode: 255, guestDurationUs: 5 });
    for (const [code, signal] of [
      [-1, 0],
      [256, 0],
      [0, 9],
      [128 + 65, 65],
    ] as const) {
      assert.throws(() => decodeExit(exit(code, signal)), ProtocolError);
    }
    const tag = new RecordWriter().u32(1).str("t".repeat(257)).finish();
    assert.throws(() => decodeStarted(tag), /a tag of 257 bytes/);
  });
});

describe("requests", () => {
  it("carry a command in the protocol's order", () => {
    const record = execRequest(
      { cmd: "ls", args: ["-l"], envs: { A: "b" }, cwd: "/tmp", tag: "t" },
      "background",
    ).finish();
    const fields = new RecordReader(record, 12);
    assert.equal(fields.u16(), 16);
    assert.deepEqual([fields.str(), fields.strs()], ["ls", ["-l"]]);
    assert.deepEqual([fields.u32(), fields.str(), fields.str()], [1, "A", "b"]);
    assert.deepEqual([fields.optionalStr(), fields.optionalStr(), fields.optionalStr()], ["/tmp", undefined, "t"]);
    assert.equal(fields.u8(), 1);
    fields.finish();
  });
});
