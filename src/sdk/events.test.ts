import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { EventParser } from "./events.ts";

const told = [
  ": a beat\n\n",
  'id: e-1\nevent: reset\ndata: {"reason":"new"}\n\n',
  'id: e-2\r\nevent: capsule\r\ndata: {"id":"cl-1",\r\ndata: "memory_mb":512}\r\n\r\n',
  'event: of-a-later-version\ndata: {"x":1}\n\n',
  'id: e-4\nevent: template-removed\ndata: {"name":"a: b"}\n\n',
].join("");

const heard = [
  { id: "e-1", event: { type: "reset", reason: "new" } },
  { id: "e-2", event: { type: "capsule", capsule: { id: "cl-1", memoryMb: 512 } } },
  { id: "e-4", event: { type: "template-removed", name: "a: b" } },
];

test("events are parsed however their text is split", () => {
  fc.assert(
    fc.property(fc.array(fc.nat(told.length), { maxLength: 20 }), (cuts) => {
      const parser = new EventParser();
      const borders = [0, ...cuts.sort((a, b) => a - b), told.length];
      const pieces = borders.slice(1).map((end, at) => told.slice(borders[at], end));
      assert.deepEqual(
        pieces.flatMap((piece) => [...parser.feed(piece)]),
        heard,
      );
    }),
  );
});

test("an endless line is not buffered without limit", () => {
  const parser = new EventParser();
  const piece = "x".repeat(1024 * 1024);
  assert.throws(() => {
    for (let i = 0; i < 100; i++) [...parser.feed(piece)];
  }, /too long/);
});
