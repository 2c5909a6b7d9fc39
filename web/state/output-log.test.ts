import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { OutputLog, type Piece } from "./output-log.ts";

test("the last characters are kept, each with its stream", () => {
  const log = new OutputLog(6);
  log.add({ channel: "stdout", text: "abc" });
  log.add({ channel: "stdout", text: "d" });
  log.add({ channel: "stderr", text: "X" });
  assert.deepEqual(
    [log.pieces, log.isCut],
    [
      [
        { channel: "stdout", text: "abcd" },
        { channel: "stderr", text: "X" },
      ],
      false,
    ],
  );
  log.add({ channel: "stdout", text: "efgh" });
  const kept = ["d", "X", "efgh"].map((text, index) => ({ channel: index === 1 ? "stderr" : "stdout", text }));
  assert.deepEqual([log.pieces, log.isCut], [kept, true]);
  log.add({ channel: "stderr", text: "123456789" });
  assert.deepEqual(log.pieces, [{ channel: "stderr", text: "456789" }]);
});

test("whatever is added, its end is kept, and nothing else", () => {
  const piece: fc.Arbitrary<Piece> = fc.record({
    channel: fc.constantFrom("stdout", "stderr"),
    text: fc.string({ maxLength: 9 }),
  });
  fc.assert(
    fc.property(fc.array(piece), (pieces) => {
      const log = new OutputLog(10);
      for (const each of pieces) log.add({ ...each });
      const all = pieces.map(({ text }) => text).join("");
      assert.equal(log.pieces.map(({ text }) => text).join(""), all.slice(-10));
      assert.equal(log.isCut, all.length > 10);
    }),
  );
});
