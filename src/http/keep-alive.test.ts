/** Connections between two requests: how long they are kept, and what happens to a request that meets their end. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, connect, type Socket } from "node:net";
import { type TestContext, test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { Api, keys } from "../../test/api.ts";
import { steadyClock } from "../../test/fakes/steady-clock.ts";
import { idleLimits } from "../../test/idle-limits.ts";
import { waitFor } from "../../test/wait-for.ts";
import { loadConfig } from "../config.ts";

const create = `POST /v1/capsules HTTP/1.1\r\nHost: x\r\nX-API-Key: ${keys.red}\r\nContent-Length: 0\r\n\r\n`;
/** Node keeps a connection open this much longer than the time that clients are told. */
const graceMs = 1_000;

async function listen(t: TestContext, api: Api): Promise<() => Socket> {
  t.after(() => api.app.close());
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  const { port } = api.app.server.address() as AddressInfo;
  return () => connect(port, "127.0.0.1");
}

/** The number of answers in `text`, which has whole ones only. */
function wholeAnswers(text: string): number {
  let count = 0;
  for (let from = 0; from < text.length; count++) {
    const head = /^HTTP\/1\.1 201 .*?\r\n\r\n/s.exec(text.slice(from))?.[0] ?? "";
    const length = Number(/\r\ncontent-length: (\d+)\r\n/i.exec(head)?.[1]);
    from += head.length + length;
    assert.ok(from <= text.length, `nothing else was sent, and no half of an answer: ${text}`);
  }
  return count;
}

test("an idle connection is kept for longer than by every proxy and client that docs/operations/expose.md lists", async (t) => {
  const keepAliveMs = loadConfig({}).keepAliveSec * 1_000;
  const limits = idleLimits();
  assert.ok(limits.length >= 10);
  /** They close when the server says so, or look before they use it. */
  const unlimited = ["Node's agent", "Python's requests and urllib3, Apache's `mod_proxy`"];
  assert.deepEqual(
    limits.filter(({ maxSec }) => maxSec === undefined).map(({ name }) => name),
    unlimited,
  );
  for (const { name, maxSec = 0 } of limits) assert.ok(keepAliveMs > maxSec * 1_000, name);
  const api = new Api({}, { keepAliveMs });
  const socket = (await listen(t, api))();
  socket.write(create);
  assert.match(String((await once(socket, "data"))[0]), /\r\nkeep-alive: timeout=3660\r\n/i);
  socket.destroy();
});

test("one that was served may be idle for longer than a client that has asked for nothing", async (t) => {
  const clock = steadyClock(t);
  const api = new Api({}, { stallMs: 100 });
  const open = await listen(t, api);
  const idle = open();
  idle.write(create);
  await once(idle, "data");
  for (let times = 0; times < 3; times++) {
    const silent = open().resume();
    await waitFor("the client that has asked for nothing is disconnected", async () => {
      await clock.pass(25);
      return silent.closed;
    });
  }
  idle.write(create);
  assert.match(String((await once(idle, "data"))[0]), /^HTTP\/1\.1 201 /);
  idle.destroy();
});

test("a request that meets the end of an idle connection is answered, or reset before it was taken", async (t) => {
  const keepAliveMs = 100;
  const api = new Api({ requests_per_sec: 10_000 }, { keepAliveMs });
  const open = await listen(t, api);
  /** Resolves with how many requests of two were answered. */
  const race = async (afterMs: number): Promise<number> => {
    const socket = open();
    let text = "";
    socket
      .on("error", () => {})
      .on("data", (chunk) => {
        text += chunk;
      });
    const closed = once(socket, "close").catch(() => {});
    socket.write(create);
    await once(socket, "data");
    await delay(afterMs);
    socket.write(create.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"));
    await closed;
    return wholeAnswers(text);
  };
  const endMs = keepAliveMs + graceMs;
  const around = Array.from({ length: 200 }, (_, index) => endMs - 100 + index);
  const answers: number[] = [];
  await waitFor("one before the end is answered", async () => {
    answers.push(await race(0)); // alone: many at once take a busy machine longer than the connection is kept
    return answers.at(-1) === 2;
  });
  answers.push(...(await Promise.all([...around, 2 * endMs].map(race))));
  assert.equal(answers.at(-1), 1, "long after the end");
  for (const count of answers) assert.ok(count === 1 || count === 2, String(count));
  const answered = answers.reduce((sum, count) => sum + count, 0);
  assert.equal(api.service.store.all().length, answered, "whatever was done was answered");
});
