import assert from "node:assert/strict";
import { once } from "node:events";
import type { Readable } from "node:stream";
import { test } from "node:test";
import fc from "fast-check";
import { EventStream } from "../../../test/event-stream.ts";
import { EventFeed } from "./event-feed.ts";

const hear = (stream: Readable) => new EventStream(stream.setEncoding("utf8"));
const publish = (feed: EventFeed, n: number, team = "red") => feed.publish(team, "capsule-removed", () => ({ id: n }));

test("a new listener hears reset and then what happens, but nothing of other teams", async () => {
  const feed = new EventFeed();
  const red = hear(feed.listen("red", undefined).stream);
  feed.listen("blue", undefined).stream;
  publish(feed, 1, "blue");
  publish(feed, 2);
  assert.deepEqual((await red.next())?.data, { reason: "new" });
  const event = await red.next();
  assert.deepEqual([event?.name, event?.data], ["capsule-removed", { id: 2 }]);
});

test("without listeners nothing is kept, nor even encoded", () => {
  const feed = new EventFeed();
  feed.publish("red", "capsule", () => assert.fail("nobody listens"));
  assert.equal(feed.size, 0);
});

test("whoever was cut off anywhere hears each event once and in order", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(fc.boolean(), { minLength: 1, maxLength: 40 }), async (cuts) => {
      const feed = new EventFeed({ ringMax: 100 });
      let stream = feed.listen("red", undefined).stream;
      let ear = hear(stream);
      await ear.next();
      const heard: number[] = [];
      for (const [n, isCut] of cuts.entries()) {
        if (isCut) stream.destroy();
        publish(feed, n);
        if (isCut) {
          stream = feed.listen("red", ear.lastId).stream;
          ear = hear(stream);
        }
        const event = await ear.next();
        heard.push(event?.data.id);
      }
      assert.deepEqual(heard, [...cuts.keys()]);
      feed.close();
    }),
  );
});

test("an id that has left the ring, of another life, of the future or of no form at all is answered by reset", async () => {
  const feed = new EventFeed({ ringMax: 3 });
  const first = hear(feed.listen("red", undefined).stream);
  const { id = "" } = (await first.next()) ?? {};
  for (let n = 1; n <= 4; n++) publish(feed, n);
  const [epoch] = id.split("-");
  const ids = [id, "00000000-2", `${epoch}-5`, `${epoch}--1`, `${epoch}-1e3`, "", "x", "9".repeat(10_000)];
  for (const each of ids) {
    const ear = hear(feed.listen("red", each).stream);
    const reset = await ear.next();
    assert.deepEqual([reset?.name, reset?.data], ["reset", { reason: "missed" }], each.slice(0, 50));
  }
  const ear = hear(feed.listen("red", `${epoch}-1`).stream);
  assert.deepEqual((await ear.next())?.data, { id: 2 });
});

test("after a reset, its id is a place to go on from", async () => {
  const feed = new EventFeed();
  const first = feed.listen("red", undefined).stream;
  const reset = await hear(first).next();
  first.destroy();
  await once(first, "close");
  publish(feed, 1);
  assert.deepEqual((await hear(feed.listen("red", reset?.id).stream).next())?.data, { id: 1 });
});

test("a listener who does not read is cut off, and nobody else is", async () => {
  const feed = new EventFeed({ backlogMaxBytes: 1_000 });
  const idle = feed.listen("red", undefined).stream;
  const busy = hear(feed.listen("red", undefined).stream);
  await busy.next();
  for (let n = 0; n < 30; n++) {
    publish(feed, n);
    assert.deepEqual((await busy.next())?.data, { id: n });
  }
  assert.ok(idle.destroyed);
});

test("events are kept for a while after the last listener, then forgotten", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const feed = new EventFeed({ lingerMs: 1_000 });
  const leave = async () => {
    const stream = feed.listen("red", undefined).stream;
    stream.destroy();
    await once(stream, "close");
  };
  await leave();
  t.mock.timers.tick(999);
  await leave();
  t.mock.timers.tick(999);
  assert.equal(feed.size, 1);
  t.mock.timers.tick(1);
  assert.equal(feed.size, 0);
});

test("a beat keeps the line alive; who may hear no more hears the end", async () => {
  const feed = new EventFeed();
  const { stream, end } = feed.listen("red", undefined);
  stream.setEncoding("utf8");
  assert.match(stream.read(), /^retry: 1000\n\nid: /);
  feed.beat();
  assert.equal(stream.read(), ": still here\n\n");
  end();
  end();
  feed.beat();
  publish(feed, 1);
  stream.resume();
  await once(stream, "end");
});

test("a team's streams are counted", () => {
  const feed = new EventFeed({ listenersMax: 1 });
  feed.listen("red", undefined).stream;
  assert.throws(() => feed.listen("red", undefined).stream, { code: "quota_exceeded" });
  feed.listen("blue", undefined).stream;
});

test("a closed feed ends its streams, the late ones too", async () => {
  const feed = new EventFeed();
  const early = feed.listen("red", undefined).stream;
  feed.close();
  const late = feed.listen("red", undefined).stream;
  await Promise.all([early, late].map((stream) => once(stream.resume(), "end")));
});
