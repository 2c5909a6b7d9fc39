import assert from "node:assert/strict";
import { once } from "node:events";
import type { Readable } from "node:stream";
import { test } from "node:test";
import fc from "fast-check";
import { EventStream } from "../../test/event-stream.ts";
import { EventFeed } from "./event-feed.ts";

const read = (stream: Readable) => new EventStream(stream.setEncoding("utf8"));
const publish = (feed: EventFeed, n: number, team = "red") => feed.publish(team, "capsule-removed", () => ({ id: n }));

test("a new stream starts with reset, then has the events of its own team only", async () => {
  const feed = new EventFeed();
  const red = read(feed.subscribe("red", undefined).stream);
  feed.subscribe("blue", undefined).stream;
  publish(feed, 1, "blue");
  publish(feed, 2);
  assert.deepEqual((await red.next())?.data, { reason: "new" });
  const event = await red.next();
  assert.deepEqual([event?.name, event?.data], ["capsule-removed", { id: 2 }]);
});

test("without streams no event is kept or encoded", () => {
  const feed = new EventFeed();
  feed.publish("red", "capsule", () => assert.fail("encoded without a stream"));
  assert.equal(feed.size, 0);
});

test("a client that was disconnected at any point gets each event once and in order", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(fc.boolean(), { minLength: 1, maxLength: 40 }), async (cuts) => {
      const feed = new EventFeed({ ringMax: 100 });
      let stream = feed.subscribe("red", undefined).stream;
      let events = read(stream);
      await events.next();
      const received: number[] = [];
      for (const [n, isCut] of cuts.entries()) {
        if (isCut) stream.destroy();
        publish(feed, n);
        if (isCut) {
          stream = feed.subscribe("red", events.lastId).stream;
          events = read(stream);
        }
        const event = await events.next();
        received.push(event?.data.id);
      }
      assert.deepEqual(received, [...cuts.keys()]);
      feed.close();
    }),
  );
});

test("an id that has left the ring, of another epoch, of a later event or malformed is answered by reset", async () => {
  const feed = new EventFeed({ ringMax: 3 });
  const first = read(feed.subscribe("red", undefined).stream);
  const { id = "" } = (await first.next()) ?? {};
  for (let n = 1; n <= 4; n++) publish(feed, n);
  const [epoch] = id.split("-");
  const ids = [id, "00000000-2", `${epoch}-5`, `${epoch}--1`, `${epoch}-1e3`, "", "x", "9".repeat(10_000)];
  for (const each of ids) {
    const events = read(feed.subscribe("red", each).stream);
    const reset = await events.next();
    assert.deepEqual([reset?.name, reset?.data], ["reset", { reason: "missed" }], each.slice(0, 50));
  }
  const events = read(feed.subscribe("red", `${epoch}-1`).stream);
  assert.deepEqual((await events.next())?.data, { id: 2 });
});

test("a stream can resume from the id of a reset", async () => {
  const feed = new EventFeed();
  const first = feed.subscribe("red", undefined).stream;
  const reset = await read(first).next();
  first.destroy();
  await once(first, "close");
  publish(feed, 1);
  assert.deepEqual((await read(feed.subscribe("red", reset?.id).stream).next())?.data, { id: 1 });
});

test("only the stream of a client that does not read is destroyed", async () => {
  const feed = new EventFeed({ backlogMaxBytes: 1_000 });
  const idle = feed.subscribe("red", undefined).stream;
  const busy = read(feed.subscribe("red", undefined).stream);
  await busy.next();
  for (let n = 0; n < 30; n++) {
    publish(feed, n);
    assert.deepEqual((await busy.next())?.data, { id: n });
  }
  assert.ok(idle.destroyed);
});

test("events are kept for the linger time after the last stream", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const feed = new EventFeed({ lingerMs: 1_000 });
  const openAndClose = async () => {
    const stream = feed.subscribe("red", undefined).stream;
    stream.destroy();
    await once(stream, "close");
  };
  await openAndClose();
  t.mock.timers.tick(999);
  await openAndClose();
  t.mock.timers.tick(999);
  assert.equal(feed.size, 1);
  t.mock.timers.tick(1);
  assert.equal(feed.size, 0);
});

test("a heartbeat is a comment; an ended stream ends after its queued events", async () => {
  const feed = new EventFeed();
  const { stream, end } = feed.subscribe("red", undefined);
  stream.setEncoding("utf8");
  assert.match(stream.read(), /^retry: 1000\n\nid: /);
  feed.heartbeat();
  assert.equal(stream.read(), ": still here\n\n");
  end();
  end();
  feed.heartbeat();
  publish(feed, 1);
  stream.resume();
  await once(stream, "end");
});

test("a team has a bounded number of streams", () => {
  const feed = new EventFeed({ streamsMax: 1 });
  feed.subscribe("red", undefined).stream;
  assert.throws(() => feed.subscribe("red", undefined).stream, { code: "quota_exceeded" });
  feed.subscribe("blue", undefined).stream;
});

test("a closed feed ends its streams, also later ones", async () => {
  const feed = new EventFeed();
  const early = feed.subscribe("red", undefined).stream;
  feed.close();
  const late = feed.subscribe("red", undefined).stream;
  await Promise.all([early, late].map((stream) => once(stream.resume(), "end")));
});

/** Streams of a team whose first bytes are read already. */
function readStreams(feed: EventFeed, count: number, team = "red"): Readable[] {
  const streams = Array.from({ length: count }, () => feed.subscribe(team, undefined).stream);
  for (const stream of streams) stream.read();
  return streams;
}

const publishLarge = (feed: EventFeed) => feed.publish("red", "capsule-removed", () => ({ id: "x".repeat(48 * 1024) }));
const unreadBytes = (streams: Readable[]) => streams.reduce((sum, stream) => sum + stream.readableLength, 0);
const nextTurn = () => new Promise((resolve) => setImmediate(resolve));

test("a turn of the loop pushes 256 KiB of a team's events, and each event is one buffer for all streams", async () => {
  const feed = new EventFeed();
  const streams = readStreams(feed, 100);
  const [blue] = readStreams(feed, 1, "blue");
  publishLarge(feed);
  const eventBytes = streams[0]!.readableLength;
  const bytesOfTurns = [unreadBytes(streams)];
  publish(feed, 1, "blue");
  assert.match(String(blue!.read()), /"id":1/, "another team's event is pushed at once");
  while (unreadBytes(streams) < 100 * eventBytes) {
    await nextTurn();
    bytesOfTurns.push(unreadBytes(streams));
  }
  const mostBytes = Math.max(...bytesOfTurns.map((bytes, at) => bytes - (bytesOfTurns[at - 1] ?? 0)));
  assert.ok(mostBytes <= (64 + 12) * 4_096, `${mostBytes} bytes in a turn`);
  assert.equal(new Set(streams.map((stream) => stream.read())).size, 1);
});

test("events that wait for a turn are in order, replayed to later streams once, and precede the end", async () => {
  const feed = new EventFeed();
  const subscriptions = Array.from({ length: 20 }, () => feed.subscribe("red", undefined));
  const early = subscriptions.map(({ stream }) => read(stream));
  for (const events of early) assert.equal((await events.next())?.name, "reset");
  const first = early[0]!.lastId;
  for (let n = 0; n < 4; n++) {
    publishLarge(feed);
    publish(feed, n);
  }
  const late = read(feed.subscribe("red", first).stream);
  for (const { end } of subscriptions) end();
  publish(feed, 4);
  for (const events of [...early, late]) {
    for (let n = 0; n < 4; n++) {
      assert.match((await events.next())?.data.id, /^x+$/);
      assert.deepEqual((await events.next())?.data, { id: n });
    }
  }
  for (const events of early) assert.equal(await events.next(), undefined);
  assert.deepEqual((await late.next())?.data, { id: 4 });
});

test("bytes that wait for a turn count for the backlog of their stream", async () => {
  const feed = new EventFeed();
  const streams = readStreams(feed, 100);
  for (let n = 0; n < 21; n++) publishLarge(feed);
  assert.ok(unreadBytes(streams) < 1 << 20, "most of them have not been pushed");
  assert.equal(streams.filter(({ destroyed }) => !destroyed).length, 100);
  publishLarge(feed);
  assert.equal(streams.filter(({ destroyed }) => !destroyed).length, 0);
});

test("long events that would not fit the backlog are answered by a reset, and the others are replayed", async () => {
  const feed = new EventFeed({ backlogMaxBytes: 4_000 });
  const first = feed.subscribe("blue", undefined);
  const id = /id: (\S+)/.exec(String(first.stream.read()))?.[1] ?? "";
  for (let at = 0; at < 12; at++) feed.publish("blue", "capsule-removed", () => ({ id: "x".repeat(200) }));
  first.stream.destroy();
  const missed = feed.subscribe("blue", id);
  assert.equal(missed.stream.destroyed, false);
  const text = String(missed.stream.read());
  assert.match(text, /"reason":"missed"/);
  const latest = /id: (\S+)/.exec(text)?.[1] ?? "";
  const before = latest.replace(/\d+$/, (count) => String(Number(count) - 2));
  const replayed = feed.subscribe("blue", before);
  assert.equal(String(replayed.stream.read()).match(/event: capsule-removed/g)?.length, 2);
  feed.close();
});
