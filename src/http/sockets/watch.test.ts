/** The socket of files/watch, with a fake guest. */
import assert from "node:assert/strict";
import { once } from "node:events";
import type { IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, beforeEach, describe, test } from "node:test";
import { type RawData, WebSocket } from "ws";
import { Api, keys } from "../../../test/api.ts";
import type { FakeWatch } from "../../../test/fakes/watch.ts";
import { waitFor, within } from "../../../test/wait-for.ts";
import type { GuestChange } from "../../agent/agent.ts";
import { AgentFailure } from "../../agent/failure.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { WatchServerMessage } from "../../wire/file-watch.ts";
import { compileCheck } from "../../wire/validation.ts";

const api = new Api({ watches_max: 3, watch_directories_max: 77 });
const check = compileCheck(WatchServerMessage);
let port = 0;
let id = "";

before(async () => {
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  port = (api.app.server.address() as AddressInfo).port;
});
beforeEach(async () => {
  id = await api.capsule();
});
after(() => api.app.close());

function connect(query: string, capsule = id): WebSocket {
  const url = `ws://127.0.0.1:${port}/v1/capsules/${capsule}/files/watch?${query}`;
  const socket = new WebSocket(url, { headers: { "x-api-key": keys.red } });
  socket.on("error", () => {});
  return socket;
}

/** An open socket with its messages, and the guest's side of it. */
async function opened(query = "path=/work&recursive=true") {
  const socket = connect(query);
  const messages: unknown[] = [];
  socket.on("message", (data: RawData) => {
    const message = JSON.parse(data.toString());
    assert.ok("value" in check(message), data.toString());
    messages.push(message);
  });
  const closed = once(socket, "close") as Promise<[number]>;
  await within("the socket is open", once(socket, "open"));
  await waitFor("it is ready", () => messages.length > 0);
  assert.deepEqual(messages.shift(), { type: "ready" });
  const watch: FakeWatch = api.agent(id).watches.at(-1)!;
  const code = async () => (await within("the socket is closed", closed))[0];
  return { socket, messages, watch, code };
}

async function refusal(query: string, capsule = id): Promise<[number, string]> {
  const socket = connect(query, capsule);
  const [, response] = (await within("the refusal", once(socket, "unexpected-response"))) as [unknown, IncomingMessage];
  let text = "";
  for await (const chunk of response) text += chunk;
  return [response.statusCode!, JSON.parse(text).error.code];
}

describe("a refusal is an HTTP answer", () => {
  test("of the request", async () => {
    assert.deepEqual(await refusal("path=/work", "cl-x"), [404, "not_found"]);
    const paused = await api.capsule("paused");
    assert.deepEqual(await refusal("path=work", paused), [409, "invalid_state"]);
    for (const query of ["", "path=work", "path=/a%00", "path=/a&recursive=1", "path=/a&depth=1", "path=/a&path=/b"]) {
      assert.deepEqual(await refusal(query), [400, "invalid_request"], query);
    }
    const reply = await api.call("GET", `/v1/capsules/${id}/files/watch?path=/work`);
    assert.deepEqual([reply.status, reply.json.error.code], [400, "invalid_request"]);
  });

  test("of the guest", async () => {
    const failures = [
      [new AgentFailure("not_found", "not_found", "/work does not exist"), [404, "not_found"]],
      [new AgentFailure("not_directory", "invalid_request", "/work is not a directory"), [400, "invalid_request"]],
      [new AgentFailure("too_large", "invalid_request", "/work has more directories"), [400, "invalid_request"]],
      [new AgentFailure("too_many", "quota_exceeded", "no more inotify watches"), [429, "quota_exceeded"]],
      [new CapsuleError("conflict", "the agent is of an earlier release"), [409, "conflict"]],
    ] as const;
    for (const [failure, expected] of failures) {
      api.agent(id).onWatch = (watch) => watch.sink.failed(failure);
      assert.deepEqual(await refusal("path=/work"), expected);
    }
  });

  test("of one watch more than a capsule may have", async () => {
    const watches = [await opened(), await opened(), await opened()];
    assert.deepEqual(await refusal("path=/work"), [429, "quota_exceeded"]);
    watches[0]!.socket.close();
    await waitFor("it has ended", () => watches[0]!.watch.isCancelled);
    await waitFor("another has its place", async () => {
      const socket = connect("path=/work");
      const isOpen = await Promise.race([
        once(socket, "open").then(() => true),
        once(socket, "close").then(() => false),
      ]);
      socket.close();
      return isOpen;
    });
  });
});

test("the guest is asked for what the client asks for", async () => {
  const { watch } = await opened();
  assert.deepEqual(watch.request, { path: "/work", recursive: true, directoriesMax: 77 });
  const other = await opened("path=/%F4%8F%A3%BF&recursive=false");
  assert.deepEqual(other.watch.request, { path: "/\u{10f8ff}", recursive: false, directoriesMax: 77 });
});

test("changes are told in order, and the directory's end closes with 1000", async () => {
  const { watch, messages, code } = await opened();
  const changes: GuestChange[] = [
    { event: "create", path: "/work/a" },
    { event: "write", path: "/work/a" },
    { event: "chmod", path: "/work/a" },
    { event: "rename", path: "/work/a", to: "/work/b" },
    { event: "remove", path: "/work/b" },
  ];
  watch.tell(...changes, "overflow", { event: "remove", path: "/work" }, "end");
  assert.equal(await code(), 1000);
  const events = [...changes, { event: "remove", path: "/work" }].map((change) => ({ type: "event", ...change }));
  assert.deepEqual(messages, [...events.slice(0, 5), { type: "overflow" }, events[5]]);
  assert.equal(watch.isCancelled, true);
});

test("many changes are told in turns of the event loop", async () => {
  const { watch, messages } = await opened();
  const changes = Array.from({ length: 1_000 }, (_, n) => ({ event: "write", path: `/work/${n}` }) as const);
  watch.tell(...changes);
  assert.ok(watch.waiting > 900, `${watch.waiting} wait behind the first turn`);
  await waitFor("all are told", () => messages.length === 1_000);
  assert.deepEqual(messages.at(-1), { type: "event", event: "write", path: "/work/999" });
});

test("of a client that does not read, the guest's changes are not taken", async () => {
  const { watch, socket, messages } = await opened();
  socket.pause();
  const path = `/work/${"x".repeat(4_000)}`;
  const changes = Array.from({ length: 20_000 }, () => ({ event: "write", path }) as const);
  watch.tell(...changes);
  let before = -1;
  await waitFor("no more is taken", async () => {
    const isSteady = watch.waiting === before;
    before = watch.waiting;
    await new Promise((resolve) => setTimeout(resolve, 50));
    return isSteady;
  });
  assert.ok(watch.waiting > 0);
  socket.resume();
  await waitFor("all are told", () => messages.length === changes.length);
});

test("a message gets an error and changes nothing", async () => {
  const { watch, socket, messages } = await opened();
  socket.send("{}");
  socket.send(Buffer.from([1]));
  await waitFor("both are answered", () => messages.length === 2);
  assert.deepEqual(messages, Array(2).fill({ type: "error", data: "a watch takes no messages" }));
  watch.tell("overflow");
  await waitFor("it goes on", () => messages.length === 3);
});

test("it closes with its reason, and ends the watch in the guest", async () => {
  const paused = await opened();
  await api.call("POST", `/v1/capsules/${id}/pause`);
  assert.equal(await paused.code(), 4409);
  assert.equal(paused.watch.isCancelled, true);
  id = await api.capsule();
  const destroyed = await opened();
  await api.call("DELETE", `/v1/capsules/${id}`);
  assert.equal(await destroyed.code(), 4404);
  id = await api.capsule();
  const failed = await opened();
  failed.watch.sink.failed(new CapsuleError("agent_error", "the connection to the guest agent was lost"));
  assert.equal(await failed.code(), 1011);
  const left = await opened();
  left.socket.terminate();
  await waitFor("the watch has ended", () => left.watch.isCancelled);
});

test("a client that hangs up before the directory is watched gets no watch", async () => {
  const asked = Promise.withResolvers<FakeWatch>();
  api.agent(id).onWatch = (watch) => asked.resolve(watch);
  const socket = connect("path=/work");
  const watch = await within("the guest is asked", asked.promise);
  socket.terminate();
  watch.sink.watching();
  await waitFor("the watch has ended", () => watch.isCancelled);
});

test("a watch is no activity", async () => {
  const activity = async () => (await api.call("GET", `/v1/capsules/${id}`)).json.last_active_at;
  const before = await activity();
  const { watch } = await opened();
  watch.tell({ event: "create", path: "/work/a" });
  assert.equal(await activity(), before);
});
