/** Retries against a real server that refuses, breaks the connection or does not answer. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { lastingPort } from "../../test/lasting-port.ts";
import { hasCode } from "./errors.ts";
import { type Request, Transport } from "./transport.ts";

type Answer = (response: ServerResponse, request: IncomingMessage) => void;

const get: Request = { method: "GET", path: "/v1/thing" };
const post: Request = { method: "POST", path: "/v1/thing", json: { a: 1 } };

const done: Answer = (response) => response.end('{"done":true}');
const cut: Answer = (_, request) => request.socket.destroy();
const halfAnAnswer: Answer = (response, request) => {
  response.writeHead(200, { "content-length": 100 });
  response.write('{"done":', () => request.socket.destroy());
};
const silent: Answer = () => {};
const badGateway: Answer = (response) => response.writeHead(502).end("<h1>Bad gateway</h1>");

function refusal(status: number, code: string, headers: Record<string, string> = {}): Answer {
  return (response) => response.writeHead(status, headers).end(JSON.stringify({ error: { code, message: "no" } }));
}

const atOnce = { "retry-after": "0" };

/** Gives one answer after the other, then repeats the last one. */
class Refusing implements AsyncDisposable {
  readonly server: Server;
  asked = 0;

  static async answering(...answers: Answer[]): Promise<Refusing> {
    const refusing = new Refusing(answers);
    await refusing.listen(0);
    return refusing;
  }

  constructor(answers: Answer[]) {
    this.server = createServer((request, response) => {
      const answer = answers[Math.min(this.asked++, answers.length - 1)]!;
      request.resume().once("end", () => answer(response, request));
    });
  }

  async listen(port: number): Promise<void> {
    await once(this.server.listen(port, "127.0.0.1"), "listening");
  }

  transport(options: object = {}): Transport {
    const { port } = this.server.address() as AddressInfo;
    return new Transport({ url: `http://127.0.0.1:${port}`, apiKey: "k", ...options });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.server.closeAllConnections();
    this.server.close();
    await once(this.server, "close");
  }
}

/** The number of requests, and the outcome: the code of the error, or "done". */
async function outcome(request: Request, ...answers: Answer[]): Promise<[asked: number, code: string]> {
  await using refusing = await Refusing.answering(...answers);
  const code = await refusing
    .transport({ retries: 2 })
    .json(request)
    .then(
      () => "done",
      (error) => error.code,
    );
  return [refusing.asked, code];
}

test("a refusal with Retry-After is retried, whatever the method", async () => {
  const [full, busy] = [refusal(503, "no_capacity", atOnce), refusal(429, "quota_exceeded", atOnce)];
  assert.deepEqual(await outcome(post, full, busy, done), [3, "done"]);
  assert.deepEqual(await outcome(get, busy), [3, "quota_exceeded"]);
  assert.deepEqual(await outcome(post, refusal(503, "no_capacity")), [1, "no_capacity"]);
  assert.deepEqual(await outcome(get, refusal(502, "agent_error", atOnce)), [1, "agent_error"]);
});

test("after a broken connection only idempotent requests are retried", async () => {
  for (const broken of [cut, halfAnAnswer, badGateway]) {
    assert.deepEqual(await outcome(get, broken, done), [2, "done"]);
    assert.deepEqual(await outcome(post, broken, done), [1, "cut_off"]);
    assert.deepEqual(await outcome({ ...post, repeat: "always" }, broken, done), [2, "done"]);
  }
});

test("a body that can be sent only once is sent once", async () => {
  const body = new Blob(["x"]).stream();
  const busy = refusal(503, "no_capacity", atOnce);
  assert.deepEqual(await outcome({ ...post, json: undefined, body, repeat: "never" }, busy), [1, "no_capacity"]);
});

test("while the service is unreachable, every request is retried", async () => {
  await using refusing = new Refusing([done]);
  const port = Number(await lastingPort());
  let attempts = 0;
  const comingBack: typeof globalThis.fetch = async (input, init) => {
    if (++attempts === 2) await refusing.listen(port);
    return fetch(input, init);
  };
  const transport = new Transport({ url: `http://127.0.0.1:${port}`, fetch: comingBack });
  assert.deepEqual(await transport.json(post), { done: true });
  assert.deepEqual([attempts, refusing.asked], [2, 1]);
});

test("a signal aborts the wait for the next attempt", async (t) => {
  const waiting = Promise.withResolvers<void>();
  const start = globalThis.setTimeout;
  t.mock.method(globalThis, "setTimeout", (act: () => void, ms: number) => {
    if (ms >= 20_000 && ms < 30_000) waiting.resolve(); // an attempt may take longer
    return start(act, ms);
  });
  await using busy = await Refusing.answering(refusal(503, "no_capacity", { "retry-after": "20" }));
  const stop = new AbortController();
  const answer = busy.transport().json({ ...post, signal: stop.signal });
  await waiting.promise;
  stop.abort(new Error("enough"));
  await assert.rejects(answer, /enough/);
  assert.equal(busy.asked, 1);
});

test("a time limit ends the attempt, without a retry", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  await using mute = await Refusing.answering(silent);
  const answer = mute.transport().json({ ...get, timeoutMs: 50 });
  const refused = assert.rejects(answer, (error) => hasCode(error, "timed_out"));
  await once(mute.server, "request");
  t.mock.timers.tick(50);
  await refused;
  assert.equal(mute.asked, 1);
});
