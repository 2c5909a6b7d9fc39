import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { bytesOfName, hasStandIns, nameFromBytes } from "./file-names.ts";

test("every name has one text, which leads back to it", () => {
  const piece = fc.oneof(
    fc.uint8Array({ maxLength: 8 }),
    fc.string({ unit: "binary", maxLength: 8 }).map((text) => new TextEncoder().encode(text)),
    fc.constantFrom(
      [0xf4, 0x8f, 0xa0, 0x80],
      [0xf4, 0x8f, 0xa3, 0xbf],
      [0xed, 0xa0, 0x80],
      [0xc0, 0xaf],
      [0xef, 0xbb, 0xbf],
    ),
  );
  fc.assert(
    fc.property(fc.array(piece), (pieces) => {
      const bytes = Buffer.concat(pieces.map((each) => Buffer.from(each)));
      const name = nameFromBytes(bytes);
      assert.deepEqual(Buffer.from(bytesOfName(name)), bytes);
      assert.ok(name.isWellFormed());
      assert.equal(Buffer.from(name).equals(bytes), !hasStandIns(name), "UTF-8 stands as it is");
    }),
    { numRuns: 2_000 },
  );
});

test("bytes that are no UTF-8, and those of the stand-ins, stand as U+10F800 + byte", () => {
  const texts: [bytes: string, text: string][] = [
    ["636166e9", "caf\u{10f8e9}"],
    ["efbfbd", "\ufffd"],
    ["efbbbf61", "\ufeffa"],
    ["f48fa080", "\u{10f8f4}\u{10f88f}\u{10f8a0}\u{10f880}"],
    ["f48fa480", "\u{10f900}"],
    ["f48f9fbf", "\u{10f7ff}"],
    ["f48fbfbf", "\u{10ffff}"],
    ["eda080", "\u{10f8ed}\u{10f8a0}\u{10f880}"],
    ["c3", "\u{10f8c3}"],
    ["e282", "\u{10f8e2}\u{10f882}"],
    ["e28261", "\u{10f8e2}\u{10f882}a"],
    ["c0af", "\u{10f8c0}\u{10f8af}"],
  ];
  for (const [bytes, text] of texts) assert.equal(nameFromBytes(Buffer.from(bytes, "hex")), text, bytes);
  assert.equal(Buffer.from(bytesOfName("\u{10f861}b")).toString(), "ab");
});
