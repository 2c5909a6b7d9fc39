/** Requests for a capsule with `auto_resume` that is paused, or being paused. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { request as httpRequest, type IncomingMessage } from "node:http";
import { type AddressInfo, connect } from "node:net";
import { after, beforeEach, test } from "node:test";
import { WebSocket } from "ws";
import { Api, keys, type Reply } from "../../test/api.ts";
import { waitFor } from "../../test/wait-for.ts";
import { CapsuleError } from "../wire/errors.ts";

const api = new Api();
const { service } = api;
const { capsules, host, clock } = service;
let id = "";
let path = "";
/** Resumes that have begun. */
let resumes = 0;
const resume = capsules.resume.bind(capsules);
capsules.resume = (...asked) => {
  resumes++;
  return resume(...asked);
};

beforeEach(async () => {
  host.before = () => {};
  id = await api.capsule();
  path = `/v1/capsules/${id}`;
  capsules.update("team-red", id, { autoResume: true });
  await capsules.pause("team-red", id);
  await service.settled();
  resumes = 0;
});
after(() => api.app.close());

const exec = (json: object = { cmd: "true" }, key: string = keys.red) =>
  api.call("POST", `${path}/exec`, { json, key });

/** Resolves when a resume is under way. */
async function hanging(): Promise<void> {
  await waitFor("a resume is under way", () => service.store.get(id)?.intent === "resume");
}

function statusNow(): string | undefined {
  return service.store.get(id)?.status;
}

const boundary = { "content-type": "multipart/form-data; boundary=b" };
const field = (disposition: string, text: string) =>
  `--b\r\nContent-Disposition: form-data; ${disposition}\r\n\r\n${text}\r\n`;
const upload = `${field('name="path"', "/root/f")}${field('name="file"; filename="f"', "x")}--b--\r\n`;

test("each request that needs the guest resumes the capsule and goes on", async () => {
  const file = { path: "/root/f" };
  const requests: [method: "GET" | "POST" | "DELETE", path: string, call: object][] = [
    ["POST", "/exec", { json: { cmd: "true" } }],
    ["POST", "/exec", { json: { cmd: "true", background: true } }],
    ["GET", "/processes", {}],
    ["DELETE", "/processes/7", {}],
    ["GET", "/processes/7/exit?timeout=0", {}],
    ["GET", "/processes/7/logs", {}],
    ["POST", "/files/read", { json: file }],
    ["POST", "/files/stream/read", { json: file }],
    ["POST", "/files/list", { json: file }],
    ["POST", "/files/stat", { json: file }],
    ["POST", "/files/mkdir", { json: file }],
    ["POST", "/files/remove", { json: file }],
    ["POST", "/files/write", { body: upload, headers: boundary }],
    ["POST", "/files/stream/write", { body: upload, headers: boundary }],
    ["POST", "/exec", { json: { cmd: 7 } }],
  ];
  for (const [method, rest, call] of requests) {
    if (statusNow() !== "paused") await capsules.pause("team-red", id);
    resumes = 0;
    const { status, text } = await api.call(method, `${path}${rest}`, call);
    assert.deepEqual([resumes, statusNow()], [1, "running"], `${method} ${rest}`);
    assert.notEqual(status, 409, `${method} ${rest}: ${text}`);
  }
});

test("a list of processes that declines it resumes nothing, of a paused capsule and of one that is being paused", async () => {
  const list = (query: string) => api.call("GET", `${path}/processes${query}`);
  const paused = await list("?resume=false");
  assert.deepEqual([paused.status, paused.json.error.code], [409, "invalid_state"]);
  await capsules.resume("team-red", id);
  assert.equal((await list("?resume=false")).status, 200);
  resumes = 0;
  const saving = Promise.withResolvers<void>();
  host.moment = () => saving.promise;
  const pausing = api.call("POST", `${path}/pause`);
  await waitFor("the pause is under way", () => service.store.get(id)?.intent === "pause");
  assert.equal((await list("?resume=false")).status, 409);
  host.moment = () => Promise.resolve();
  saving.resolve();
  assert.equal((await pausing).json.status, "paused");
  assert.deepEqual([(await list("?resume=maybe")).status, (await list("?resume=true")).status], [400, 200]);
  assert.deepEqual([resumes, statusNow()], [1, "running"], "the one that is not understood has resumed it");
});

test("a signed URL resumes its capsule; making one does not, and a wrong one wakes nothing", async () => {
  const { json: made } = await api.call("POST", `${path}/files/url`, { json: { path: "/root/f" } });
  const { pathname, search } = new URL(made.url);
  assert.equal(resumes, 0);
  const altered = search.replace(/(?<=signature=)./, (first) => (first === "A" ? "B" : "A"));
  const wrong = await api.call("GET", `${pathname}${altered}`, { key: null });
  assert.deepEqual([wrong.status, resumes], [401, 0]);
  const read = await api.call("GET", `${pathname}${search}`, { key: null });
  assert.deepEqual([read.status === 409, resumes, statusNow()], [false, 1, "running"]);
});

test("a hundred requests on a paused capsule are one resume and a hundred answers", async () => {
  host.isHanging = true;
  const asked = Array.from({ length: 100 }, () => exec());
  await hanging();
  const more = await exec();
  assert.deepEqual([more.status, more.json.error.code, more.headers["retry-after"]], [429, "quota_exceeded", "5"]);
  assert.deepEqual(more.json.error.details, { quota: "resume_waiters", used: 100, limit: 100 });
  host.isHanging = false;
  host.stopHanging();
  const answers = await Promise.all(asked);
  assert.deepEqual([...new Set(answers.map(({ status }) => status))], [200]);
  assert.equal(resumes, 1);
  service.audit.flush();
  const entries = service.audit.list("team-red", { limit: 1_000, capsuleId: id }).entries;
  const own = entries.filter(({ action }) => action === "capsule.resume");
  assert.deepEqual(
    own.map(({ keyId, subject, status }) => [keyId, subject, status]),
    [["", "auto_resume", 200]],
  );
});

test("requests on a capsule that is being paused wait for the pause, and for one resume", async () => {
  await capsules.resume("team-red", id);
  resumes = 0;
  const saving = Promise.withResolvers<void>();
  host.moment = () => saving.promise;
  const pausing = api.call("POST", `${path}/pause`);
  await waitFor("the pause is under way", () => service.store.get(id)?.intent === "pause");
  const asked = Array.from({ length: 50 }, () => exec());
  const listed = await api.call("GET", path);
  assert.equal(listed.json.status, "running");
  await waitFor("all wait", () => service.autoResumes.waiting(id) === 50);
  host.moment = () => Promise.resolve();
  saving.resolve();
  assert.equal((await pausing).json.status, "paused");
  assert.deepEqual([...new Set((await Promise.all(asked)).map(({ status }) => status))], [200]);
  assert.equal(resumes, 1);
});

test("auto_resume that is taken away while the pause is under way resumes nothing", async () => {
  await capsules.resume("team-red", id);
  resumes = 0;
  const saving = Promise.withResolvers<void>();
  host.moment = () => saving.promise;
  const pausing = api.call("POST", `${path}/pause`);
  await waitFor("the pause is under way", () => service.store.get(id)?.intent === "pause");
  const asked = exec();
  await waitFor("it waits", () => service.autoResumes.waiting(id) === 1);
  assert.equal((await api.call("PATCH", path, { json: { auto_resume: false } })).status, 200);
  host.moment = () => Promise.resolve();
  saving.resolve();
  assert.equal((await pausing).json.status, "paused");
  assert.deepEqual([(await asked).status, resumes], [409, 0]);
});

test("a pause that fails leaves nothing to resume", async () => {
  await capsules.resume("team-red", id);
  resumes = 0;
  const saving = Promise.withResolvers<void>();
  host.moment = () => saving.promise;
  host.before = (verb) => {
    if (verb === "save") throw new CapsuleError("no_space", "the disk is full");
  };
  const pausing = api.call("POST", `${path}/pause`);
  await waitFor("the pause is under way", () => service.store.get(id)?.intent === "pause");
  const asked = exec();
  await waitFor("it waits", () => service.autoResumes.waiting(id) === 1);
  host.moment = () => Promise.resolve();
  saving.resolve();
  assert.equal((await pausing).status, 507);
  assert.deepEqual([(await asked).status, resumes], [200, 0]);
});

test("a resume that a client has asked for is waited for, and no other begun", async () => {
  host.isHanging = true;
  const resuming = api.call("POST", `${path}/resume`);
  await hanging();
  const asked = exec();
  await waitFor("it waits", () => service.autoResumes.waiting(id) === 1);
  host.isHanging = false;
  host.stopHanging();
  assert.equal((await resuming).status, 200);
  assert.deepEqual([(await asked).status, resumes], [200, 1]);
});

test("only what is authorised resumes, and GET, list, PATCH, ping, pause and snapshot do not wait", async () => {
  assert.equal((await exec({ cmd: "true" }, keys.blue)).status, 404);
  assert.equal((await exec({ cmd: "true" }, "capk_wrong")).status, 401);
  assert.equal((await api.call("GET", path)).json.status, "paused");
  assert.equal((await api.call("GET", "/v1/capsules?status=paused")).status, 200);
  assert.equal((await api.call("PATCH", path, { json: { labels: { a: "b" } } })).json.status, "paused");
  for (const [url, json] of [
    [`${path}/ping`, undefined],
    [`${path}/pause`, undefined],
    ["/v1/snapshots", { sandbox_id: id }],
  ] as const) {
    const { status, json: body } = await api.call("POST", url, json === undefined ? {} : { json });
    assert.deepEqual([status, body.error.code], [409, "invalid_state"], url);
  }
  assert.deepEqual([resumes, statusNow()], [0, "paused"]);
});

test("without auto_resume, and in other statuses, the answer is 409 at once", async () => {
  capsules.update("team-red", id, { autoResume: false });
  assert.equal((await exec()).status, 409);
  for (const status of ["stopped", "error"] as const) {
    const other = await api.capsule(status);
    capsules.update("team-red", other, { autoResume: true });
    assert.equal((await api.call("POST", `/v1/capsules/${other}/exec`, { json: { cmd: "true" } })).status, 409);
  }
  assert.equal(resumes, 0);
});

test("a refused resume is the answer of all, by its own code", async () => {
  const refusals: [error: CapsuleError, status: number][] = [
    [new CapsuleError("agent_error", "the VM could not be started"), 502],
    [new CapsuleError("no_capacity", "no memory is free", { retryAfterSec: 9 }), 503],
    [new CapsuleError("conflict", "another machine"), 409],
    [new CapsuleError("quota_exceeded", "too many vCPUs"), 429],
  ];
  for (const [error, status] of refusals) {
    host.before = (verb) => {
      if (verb === "restore") throw error;
    };
    resumes = 0;
    const restoring = Promise.withResolvers<void>();
    host.moment = () => restoring.promise;
    const asked = [exec(), exec(), api.call("GET", `${path}/processes`)];
    await waitFor("all wait", () => service.autoResumes.waiting(id) === asked.length);
    host.moment = () => Promise.resolve();
    restoring.resolve();
    const answers = await Promise.all(asked);
    for (const answer of answers) assert.deepEqual([answer.status, answer.json.error.code], [status, error.code]);
    assert.deepEqual([resumes, statusNow()], [1, "paused"]);
  }
  host.before = () => {};
  assert.equal((await exec()).status, 200, "the next request tries again");
});

test("a request is 504 `timeout` after a minute, and the resume goes on", async () => {
  host.isHanging = true;
  const asked = exec();
  await hanging();
  clock.advance(59_999);
  assert.equal(await Promise.race([asked, new Promise((resolve) => setImmediate(resolve, "waits"))]), "waits");
  clock.advance(1);
  const { status, json } = await asked;
  assert.deepEqual([status, json.error.code], [504, "timeout"]);
  host.isHanging = false;
  host.stopHanging();
  await service.settled();
  assert.equal(statusNow(), "running");
});

test("a capsule that is destroyed meanwhile is 404, and a key that is revoked 401", async () => {
  host.isHanging = true;
  const gone = exec();
  await hanging();
  assert.equal((await api.call("DELETE", path)).status, 204);
  assert.equal((await gone).status, 404);

  id = await api.capsule();
  path = `/v1/capsules/${id}`;
  capsules.update("team-red", id, { autoResume: true });
  await capsules.pause("team-red", id);
  const { json: made } = await api.call("POST", "/v1/keys", { json: { name: "short" } });
  host.isHanging = true;
  const refused = exec({ cmd: "true" }, made.key);
  await hanging();
  assert.equal((await api.call("DELETE", `/v1/keys/${made.id}`)).status, 204);
  host.isHanging = false;
  host.stopHanging();
  assert.equal((await refused).status, 401);
});

test("WebSockets wait before their 101, and a client that goes away frees its place", async () => {
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  const { port } = api.app.server.address() as AddressInfo;
  const logged = api.log.length;
  host.isHanging = true;
  const sockets = ["exec/stream", "pty"].map(
    (name) => new WebSocket(`ws://127.0.0.1:${port}${path}/${name}`, { headers: { "x-api-key": keys.red } }),
  );
  const opened = Promise.all(sockets.map((socket) => once(socket, "open")));
  await hanging();

  // 98 more fill the places: requests, half of them with a body that has not arrived, and upgrades that end their side.
  const headers = { "x-api-key": keys.red, "content-type": "application/json" };
  const posts = Array.from({ length: 50 }, () => {
    const post = httpRequest({
      port,
      method: "POST",
      path: `${path}/exec`,
      headers: { ...headers, "content-length": 9e5 },
    });
    post.on("error", () => {}).write(Buffer.alloc(1_000, 32));
    return post;
  });
  const upgrades = Array.from({ length: 48 }, () => {
    const socket = connect(port, "127.0.0.1").on("error", () => {});
    socket.write(
      `GET ${path}/pty HTTP/1.1\r\nHost: x\r\nX-API-Key: ${keys.red}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n` +
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    );
    return socket;
  });
  const isFull = async () => (await refusedAtOnce())?.status === 429;
  /** undefined: it waits. */
  async function refusedAtOnce(): Promise<Reply | undefined> {
    return service.autoResumes.waiting(id) < 100 ? undefined : await exec();
  }
  await waitFor("all places are taken", isFull);
  for (const post of posts) post.destroy();
  await waitFor("requests have freed their places", () => service.autoResumes.waiting(id) === 50);
  for (const upgrade of upgrades) upgrade.end();
  await waitFor("upgrades have freed their places", () => service.autoResumes.waiting(id) === 2);
  host.isHanging = false;
  host.stopHanging();
  await opened;
  assert.equal(resumes, 1);
  const errors = api.log.slice(logged).filter((line) => JSON.parse(line).level >= 50);
  assert.deepEqual(errors, [], "clients that went away are no errors of the server");
  for (const socket of sockets) socket.close();
});

test("a WebSocket whose resume is refused gets an HTTP answer", async () => {
  const { port } = api.app.server.address() as AddressInfo;
  host.before = (verb) => {
    if (verb === "restore") throw new CapsuleError("no_capacity", "no memory is free");
  };
  const socket = new WebSocket(`ws://127.0.0.1:${port}${path}/pty`, { headers: { "x-api-key": keys.red } });
  const [, response] = (await once(socket, "unexpected-response")) as [unknown, IncomingMessage];
  assert.deepEqual([response.statusCode, response.headers["retry-after"]], [503, "5"]);
  response.destroy();
});

test("nothing is resumed when every client has gone before the pause has ended", async () => {
  const { port } = api.app.server.address() as AddressInfo;
  await capsules.resume("team-red", id);
  resumes = 0;
  const saving = Promise.withResolvers<void>();
  host.moment = () => saving.promise;
  const pausing = capsules.pause("team-red", id);
  const post = httpRequest({ port, method: "POST", path: `${path}/exec`, headers: { "x-api-key": keys.red } });
  post.on("error", () => {}).end();
  await waitFor("it waits", () => service.autoResumes.waiting(id) === 1);
  post.destroy();
  await waitFor("it has gone", () => service.autoResumes.waiting(id) === 0);
  host.moment = () => Promise.resolve();
  saving.resolve();
  await pausing;
  await service.settled();
  assert.deepEqual([resumes, statusNow()], [0, "paused"]);
  assert.equal((await exec()).status, 200, "the next request resumes it");
});
