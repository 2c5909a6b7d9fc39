/** Standard input by the client, of a service whose agent is a fake. */
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { type TestContext, test } from "node:test";
import { Api, keys } from "../../test/api.ts";
import type { FakeRun } from "../../test/fakes/agent.ts";
import { waitFor } from "../../test/wait-for.ts";
import { pausedBytesPerMs } from "../http/access/team-turns.ts";
import { Client } from "./client.ts";

async function setUp(t: TestContext) {
  const api = new Api();
  const url = await api.app.listen({ host: "127.0.0.1", port: 0 });
  t.after(() => api.app.close());
  const id = await api.capsule("running");
  return { api, agent: api.agent(id), capsule: new Client({ url, apiKey: keys.red }).capsule(id) };
}

/** All that the command reads. */
async function inputOf(run: FakeRun): Promise<Buffer> {
  await waitFor("the end of its input", () => run.hasInputEnded);
  return Buffer.concat(run.input);
}

test("exec takes text, bytes and iterables, short and long", async (t) => {
  const { agent, capsule } = await setUp(t);
  const large = randomBytes(3_000_000);
  async function* parts() {
    yield "grü";
    yield Buffer.from("ße");
  }
  const inputs: [string | Uint8Array | AsyncIterable<string | Uint8Array>, Uint8Array][] = [
    ["grüße", Buffer.from("grüße")],
    ["", Buffer.alloc(0)],
    [Buffer.from([0, 255]), Buffer.from([0, 255])],
    [large, large],
    [parts(), Buffer.from("grüße")],
  ];
  for (const [stdin, expected] of inputs) {
    const count = agent.runs.length;
    const result = capsule.exec("hang", [], { stdin });
    await waitFor("it runs", () => agent.runs.length > count);
    const run = agent.runs.at(-1) as FakeRun;
    assert.ok((await inputOf(run)).equals(expected));
    run.exit(3);
    assert.equal((await result).exitCode, 3);
  }
});

test("no message of a large input is one after which the service lets the team wait", async (t) => {
  const { agent, capsule } = await setUp(t);
  const messages: number[] = [];
  const { send } = WebSocket.prototype;
  t.mock.method(WebSocket.prototype, "send", function (this: WebSocket, text: string) {
    if (text.includes('"stdin","data"')) messages.push(text.length);
    send.call(this, text);
  });
  const result = capsule.exec("hang", [], { stdin: randomBytes(1_000_000) });
  await waitFor("it runs", () => agent.runs.length > 0);
  const run = agent.runs[0] as FakeRun;
  assert.equal((await inputOf(run)).length, 1_000_000);
  run.exit(0);
  await result;
  assert.ok(Math.max(...messages) < pausedBytesPerMs, `${Math.max(...messages)} bytes`);
  assert.equal(messages.length, 21, "each holds nearly as much as it may");
});

test("an iterable that fails kills the command, and its error is thrown", async (t) => {
  const { agent, capsule } = await setUp(t);
  agent.signal = async () => agent.runs[0]!.exit(137);
  async function* parts() {
    yield "some";
    throw new Error("the source broke");
  }
  await assert.rejects(capsule.exec("hang", [], { stdin: parts() }), /the source broke/);
});

test("an iterable is not read on after the command's end", async (t) => {
  const { agent, capsule } = await setUp(t);
  agent.onRun = (run) => run.exit(0);
  let isReturned = false;
  async function* parts() {
    try {
      for (let part = 0; part < 1_000_000; part++) {
        yield "more";
        await new Promise(setImmediate);
      }
    } finally {
      isReturned = true;
    }
  }
  assert.equal((await capsule.exec("hang", [], { stdin: parts() })).exitCode, 0);
  await waitFor("its end", () => isReturned);
});

test("a stream with stdin is written to and ended; without, the service's error is thrown", async (t) => {
  const { agent, capsule } = await setUp(t);
  const stream = await capsule.stream("hang", [], { stdin: true });
  await stream.write("one ");
  await stream.write(Buffer.from("two"));
  stream.endStdin();
  const run = agent.runs[0] as FakeRun;
  assert.equal((await inputOf(run)).toString(), "one two");
  run.exit(0);
  assert.equal(await stream.wait(), 0);

  await using without = await capsule.stream("hang");
  const reading = without.wait().catch(() => {});
  await waitFor("the refusal", async () => {
    const refused = await without.write("x").catch((error) => error);
    return /stdin/.test(refused?.message ?? "");
  });
  agent.runs[1]!.exit(0);
  await reading;
});

test("stop reaches a command that does not read its input", async (t) => {
  const { agent, capsule } = await setUp(t);
  const kills: unknown[] = [];
  agent.signal = async (selector, signal) => {
    kills.push([selector, signal]);
  };
  const stream = await capsule.stream("hang", [], { stdin: true });
  await stream.write("unread");
  stream.stop();
  await waitFor("the kill", () => kills.length === 1);
  assert.deepEqual(kills, [[{ pid: stream.pid }, "SIGKILL"]]);
  agent.runs[0]!.exit(137);
  assert.equal(await stream.wait(), 137);
});

test("a background process with stdin is written to by who attaches", async (t) => {
  const { agent, capsule } = await setUp(t);
  const job = await capsule.spawn("true", [], { stdin: true });
  assert.equal(agent.started[0]?.stdin, true);
  const stream = await job.attach();
  await stream.write("typed");
  stream.endStdin();
  await waitFor("the end", () => agent.inputs[0]?.hasInputEnded === true);
  assert.equal(Buffer.concat(agent.inputs[0]!.input).toString(), "typed");
  stream.close();
});
