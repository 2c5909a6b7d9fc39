import assert from "node:assert/strict";
import { test } from "node:test";
import { Client } from "./client.ts";
import { hasCode } from "./errors.ts";

const url = "http://127.0.0.1:2";
const running = { id: "cl-0123456789abcdefghijklmno", status: "running" };
const starting = { ...running, status: "starting" };

/** A service that carries out creations once per key, and notes what it was asked. */
function service(answers: ((signal: AbortSignal) => Promise<Response>)[]) {
  const asked: string[] = [];
  const keys = new Set<string | null>();
  const fetch: typeof globalThis.fetch = async (input, init) => {
    const call = `${init?.method} ${String(input).slice(url.length).split("?", 1)[0]}`;
    asked.push(call);
    if (call === "POST /v1/capsules") keys.add(new Headers(init?.headers).get("idempotency-key"));
    if (init?.method === "DELETE") return new Response(null, { status: 204 });
    const answer = answers.shift() ?? (async () => Response.json(running));
    return answer(init?.signal as AbortSignal);
  };
  return { client: new Client({ url, fetch, retries: 0 }), fetch, asked, keys };
}

/** Answers nothing; `onAsked` runs when the request is there. */
function silent(onAsked: () => void): (signal: AbortSignal) => Promise<Response> {
  return (signal) => {
    const { promise, reject } = Promise.withResolvers<Response>();
    signal.addEventListener("abort", () => reject(signal.reason));
    onAsked();
    return promise;
  };
}

const [create, destroy] = ["POST /v1/capsules", `DELETE /v1/capsules/${running.id}`];

test("a create that is aborted while it is sent is found by its key and destroyed", async () => {
  const stop = new AbortController();
  const { client, asked, keys } = service([
    silent(() => stop.abort(new Error("enough"))),
    async () => Response.json(starting),
  ]);
  await assert.rejects(client.create({ signal: stop.signal }), /enough/);
  assert.deepEqual([asked, keys.size], [[create, create, destroy], 1]);
  assert.match([...keys][0] as string, /^[0-9a-f]{32}$/);
});

test("a create that is aborted while its capsule starts is destroyed", async () => {
  const stop = new AbortController();
  const { client, asked } = service([
    async () => Response.json(starting),
    silent(() => stop.abort(new Error("enough"))),
  ]);
  await assert.rejects(client.create({ signal: stop.signal }), /enough/);
  assert.deepEqual(asked, [create, `GET /v1/capsules/${running.id}`, destroy]);
});

test("a create that is cut off leaves nothing behind; one that is refused or was never sent asks no more", async () => {
  const cut = service([
    () => Promise.reject(Object.assign(new TypeError("fetch failed"), { cause: { code: "ECONNRESET" } })),
  ]);
  await assert.rejects(cut.client.create(), (error) => hasCode(error, "cut_off"));
  assert.deepEqual(cut.asked, [create, create, destroy]);
  const refusal = { error: { code: "no_capacity", message: "full" } };
  const refused = service([async () => Response.json(refusal, { status: 503 })]);
  await assert.rejects(refused.client.create(), (error) => hasCode(error, "no_capacity"));
  assert.deepEqual(refused.asked, [create]);
  const unsent = service([]);
  await assert.rejects(unsent.client.create({ signal: AbortSignal.abort(new Error("early")) }), /early/);
  assert.deepEqual(unsent.asked, []);
});

test("a create that was cut off is looked for, although the service could not be reached again", async () => {
  const failed = (code: string) => () =>
    Promise.reject(Object.assign(new TypeError("fetch failed"), { cause: { code } }));
  const { fetch, asked } = service([failed("ECONNRESET"), failed("ECONNREFUSED")]);
  const client = new Client({ url, fetch, retries: 1 });
  await assert.rejects(client.create(), (error) => hasCode(error, "unreachable"));
  assert.deepEqual(asked, [create, create, create, destroy]);
});

test("nothing that was made under a key of its own is destroyed when its capsule does not run", async () => {
  const stopped = { ...running, status: "stopped", error_reason: null };
  const { client, asked } = service([async () => Response.json(stopped), async () => Response.json(stopped)]);
  await assert.rejects(client.create({ idempotencyKey: "mine" }), (error) => hasCode(error, "invalid_state"));
  assert.deepEqual(asked, [create, `GET /v1/capsules/${running.id}`]);
});

test("with a key of its own an aborted create leaves the capsule to the next call", async () => {
  const stop = new AbortController();
  const { client, asked, keys } = service([silent(() => stop.abort(new Error("enough")))]);
  await assert.rejects(client.create({ signal: stop.signal, idempotencyKey: "mine" }), /enough/);
  assert.equal((await client.create({ idempotencyKey: "mine" })).id, running.id);
  assert.deepEqual([asked.filter((call) => call.startsWith("DELETE")), [...keys]], [[], ["mine"]]);
});
