import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { countTurns } from "../../test/count-turns.ts";
import { Pipe } from "./pipe.ts";

const idleReader = { space: () => Buffer.alloc(1), filled() {}, drained() {}, lost() {} };

test("writes of one tick are sent together at its end, or at flush()", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "pipe-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const path = join(folder, "guest.sock");
  const server = createServer().listen(path);
  await once(server, "listening");
  const pipe = new Pipe(path, idleReader);
  const [guest] = (await once(server, "connection")) as [Socket];
  let heard = "";
  guest.on("data", (bytes: Buffer) => {
    heard += bytes;
  });
  pipe.write(Buffer.from("first "));
  await once(guest, "data"); // it is connected from here on

  pipe.write(Buffer.from("one "));
  pipe.write(Buffer.from("two "));
  assert.equal(pipe.queuedBytes, 8);
  pipe.flush();
  assert.equal(pipe.queuedBytes, 0);
  pipe.flush();
  pipe.write(Buffer.from("three"));
  assert.equal(pipe.queuedBytes, 5);
  await once(guest, "data");
  while (heard.length < "first one two three".length) await once(guest, "data");
  assert.equal(heard, "first one two three");
  assert.equal(pipe.queuedBytes, 0);
  const gone = once(guest, "end");
  pipe.destroy();
  await gone;
  server.close();
});

/** Lets a guest send 64 KiB, read in pieces of 1 KiB that take `workMs` each; the number of reads in each turn. */
async function readsPerTurn(t: TestContext, workMs: number): Promise<number[]> {
  const folder = mkdtempSync(join(tmpdir(), "pipe-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const path = join(folder, "guest.sock");
  const server = createServer().listen(path);
  t.after(() => server.close());
  await once(server, "listening");
  let nowMs = 0;
  t.mock.method(performance, "now", () => nowMs);
  const piece = Buffer.alloc(1_024);
  let left = 64 * piece.length;
  server.once("connection", (guest) => guest.write(Buffer.alloc(left, 1)));
  const { promise: done, resolve } = Promise.withResolvers<void>();
  const turns: number[] = [];
  const beginTurn = () => {
    turns.push(0);
    if (left > 0) setImmediate(beginTurn);
    else resolve();
  };
  const filled = (bytes: number) => {
    if (turns.length === 0) beginTurn();
    turns[turns.length - 1]!++;
    left -= bytes;
    nowMs += workMs;
  };
  const pipe = new Pipe(path, { ...idleReader, space: () => piece, filled });
  await done;
  pipe.destroy();
  return turns;
}

test("a guest that takes much time is read once per tick of the event loop", async (t) => {
  const turns = await readsPerTurn(t, 2);
  assert.equal(Math.max(...turns), 1);
});

test("of many guests that take much time eight are read in one tick, and all in turn", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "pipe-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const path = join(folder, "guest.sock");
  const server = createServer((guest) => void guest.write(Buffer.alloc(16_384, 1))).listen(path);
  await once(server, "listening");
  let nowMs = 0;
  t.mock.method(performance, "now", () => nowMs);
  const turn = countTurns(t);
  const piece = Buffer.alloc(1_024);
  const [reads, left] = [new Map<number, number>(), new Map<number, number>()];
  const { promise: done, resolve } = Promise.withResolvers<void>();
  const pipes = Array.from({ length: 40 }, (_, index) => {
    left.set(index, 16);
    const filled = () => {
      nowMs += 1;
      // The first read of a pipe comes when its guest has written, the others when the line lets it.
      if (left.get(index)! < 16) reads.set(turn(), (reads.get(turn()) ?? 0) + 1);
      left.set(index, left.get(index)! - 1);
      if (left.get(index) === 0) left.delete(index);
      if (left.size === 0) resolve();
    };
    return new Pipe(path, { ...idleReader, space: () => piece, filled });
  });
  await done;
  for (const pipe of pipes) pipe.destroy();
  server.close();
  assert.ok(Math.max(...reads.values()) <= 8, `${[...reads.values()]}`);
});

test("a guest that takes little time is read more often", async (t) => {
  const turns = await readsPerTurn(t, 0);
  assert.ok(Math.max(...turns) > 8, `${turns}`);
});
