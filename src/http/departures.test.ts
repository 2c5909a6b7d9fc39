import assert from "node:assert/strict";
import { test } from "node:test";
import type { FastifyReply } from "fastify";
import { Departures } from "./departures.ts";

const turnEnds = () => new Promise((done) => setImmediate(done));

function road() {
  const left: string[] = [];
  const departures = new Departures();
  const send = (count: number) => {
    for (let n = 0; n < count; n++)
      departures.send({ send: (text: string) => left.push(text) } as never as FastifyReply, "a");
  };
  return { send, left };
}

test("the first answers of a turn leave at once, the others four at a time", () => {
  const { send, left } = road();
  const seen = Array.from({ length: 13 }, () => {
    send(1);
    return left.length;
  });
  assert.deepEqual(seen, [1, 2, 3, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12]);
});

test("none waits for longer than its turn, and each turn begins anew", async () => {
  const { send, left } = road();
  for (let turn = 1; turn <= 3; turn++) {
    send(6);
    assert.equal(left.length, 6 * turn - 2);
    await turnEnds();
    assert.equal(left.length, 6 * turn);
  }
});

test("answers leave in the order in which they were made", async () => {
  const left: string[] = [];
  const departures = new Departures();
  const texts = Array.from({ length: 11 }, (_, n) => String(n));
  for (const text of texts) departures.send({ send: () => left.push(text) } as never as FastifyReply, text);
  await turnEnds();
  assert.deepEqual(left, texts);
});
