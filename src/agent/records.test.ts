import assert from "node:assert/strict";
import { describe, it } from "node:test";
import fc from "fast-check";
import { ProtocolError, RecordReader, RecordWriter, ShortRecord } from "./records.ts";

const text = fc.string({ unit: "grapheme", maxLength: 50 });

describe("records", () => {
  it("are read as they were written, field by field", () => {
    fc.assert(
      fc.property(
        fc.record(
          {
            u8: fc.nat(255),
            u16: fc.nat(65_535),
            u32: fc.nat(0xffff_ffff),
            u64: fc.maxSafeNat(),
            bytes: fc.uint8Array({ maxLength: 2_000 }),
            str: text,
            strs: fc.array(text, { maxLength: 40 }),
            optional: fc.option(text, { nil: undefined }),
          },
          { noNullPrototype: true },
        ),
        fc.nat(20),
        (value, reserved) => {
          const record = new RecordWriter(reserved)
            .u8(value.u8)
            .u16(value.u16)
            .u32(value.u32)
            .u64(BigInt(value.u64))
            .bytes(value.bytes)
            .str(value.str)
            .strs(value.strs)
            .optionalStr(value.optional)
            .finish();
          const fields = new RecordReader(record, reserved);
          const read = {
            u8: fields.u8(),
            u16: fields.u16(),
            u32: fields.u32(),
            u64: fields.u64(),
            bytes: new Uint8Array(fields.bytes()),
            str: fields.str(),
            strs: fields.strs(),
            optional: fields.optionalStr(),
          };
          fields.finish();
          assert.deepEqual(read, value);
        },
      ),
    );
  });

  it("write a map as count, keys and values", () => {
    const record = new RecordWriter().map({ A: "1", B: "" }).finish();
    const fields = new RecordReader(record);
    assert.deepEqual([fields.u32(), fields.str(), fields.str(), fields.str(), fields.str()], [2, "A", "1", "B", ""]);
    fields.finish();
  });

  it("of random bytes are never read beyond their end", () => {
    const reads = ["u8", "u16", "u32", "i32", "u64", "i64", "bytes", "str", "strs", "optionalStr", "finish"] as const;
    fc.assert(
      fc.property(
        fc.uint8Array({ maxLength: 200 }),
        fc.array(fc.constantFrom(...reads), { maxLength: 20 }),
        (bytes, plan) => {
          // The record is a view into a larger buffer, as in the parser's arena, where an overread would not fail by
          // itself.
          const around = Buffer.concat([Buffer.alloc(50, 1), bytes, Buffer.alloc(50, 1)]);
          const fields = new RecordReader(around.subarray(50, 50 + bytes.length));
          try {
            for (const read of plan) {
              fields[read]();
              assert.ok(fields.position <= bytes.length);
            }
          } catch (error) {
            assert.ok(error instanceof ProtocolError);
          }
        },
      ),
      { numRuns: 1_000 },
    );
  });

  it("with a false count or length fail at once", () => {
    const forged = Buffer.alloc(64, 0xff);
    assert.throws(() => new RecordReader(forged).str(), ShortRecord);
    assert.throws(() => new RecordReader(forged).strs(), ShortRecord);
    assert.throws(() => new RecordReader(Buffer.alloc(8, 0)).finish(), ProtocolError);
  });

  it("limit 64-bit numbers to the safe integers", () => {
    const largest = new RecordWriter().u64(0xffff_ffff_ffff_ffffn).bare();
    assert.equal(new RecordReader(largest).u64(), Number.MAX_SAFE_INTEGER);
    assert.equal(new RecordReader(largest).i64(), -1);
    const lowest = new RecordWriter().u64(1n << 63n).bare();
    assert.equal(new RecordReader(lowest).i64(), Number.MIN_SAFE_INTEGER);
  });
});
