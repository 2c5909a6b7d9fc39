import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { Client } from "./client.ts";
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

test("a proxy that accepts the stream and closes it at once is asked less and less often", async (t) => {
  let asked = 0;
  const closing: typeof fetch = async () => {
    asked += 1;
    return new Response("", { headers: { "content-type": "text/event-stream" } });
  };
  const stop = new AbortController();
  const pauses: number[] = [];
  const start = globalThis.setTimeout;
  t.mock.method(Math, "random", () => 0.5);
  t.mock.method(globalThis, "setTimeout", (act: () => void, ms: number) => {
    if (ms >= 10_000) return start(act, ms); // an attempt may take that long
    if (pauses.push(ms) === 5) stop.abort();
    return start(act, 0);
  });
  const states: string[] = [];
  const client = new Client({ url: "http://127.0.0.1:2", apiKey: "k", fetch: closing });
  const events = client.events({ signal: stop.signal, onState: (state) => states.push(state) });
  for await (const event of events) assert.fail(JSON.stringify(event));
  assert.deepEqual([asked, pauses], [5, [200, 400, 800, 1_600, 2_500]]);
  assert.deepEqual(new Set(states), new Set(["reconnecting"]), "it was never live");
});
