/** Requests for a capsule whose guest is not adopted yet after a start of the server. */
import assert from "node:assert/strict";
import { once } from "node:events";
import type { IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import { after, beforeEach, test } from "node:test";
import { WebSocket } from "ws";
import { Api, keys, type Reply } from "../../test/api.ts";
import { waitFor } from "../../test/wait-for.ts";

const api = new Api();
const { service } = api;
let id = "";
let path = "";
beforeEach(async () => {
  id = await api.capsule();
  path = `/v1/capsules/${id}`;
  service.adoptions.begin(id);
});
after(() => api.app.close());

/** The result of `asked`, while its time passes in steps of 5 s. */
async function afterWait<T>(asked: Promise<T>): Promise<T> {
  let result: { value: T } | undefined;
  void asked.then((value) => {
    result = { value };
  });
  const { value } = await waitFor("the request is answered", () => {
    service.clock.advance(5_000);
    return result;
  });
  return value;
}

function assertUnavailable({ status, json, headers }: Reply): void {
  assert.deepEqual([status, json.error.code, headers["retry-after"]], [503, "unavailable", "5"]);
}

test("a request that needs the guest is 503 `unavailable` after 5 s, with Retry-After", async () => {
  const file = { path: "/root/f" };
  const requests: [method: "GET" | "POST" | "DELETE", path: string, json?: object][] = [
    ["POST", `${path}/exec`, { cmd: "true" }],
    ["POST", `${path}/exec`, { cmd: "true", background: true }],
    ["GET", `${path}/processes`],
    ["DELETE", `${path}/processes/7`],
    ["GET", `${path}/processes/7/exit`],
    ["POST", `${path}/files/read`, file],
    ["POST", `${path}/files/stream/read`, file],
    ["POST", `${path}/files/list`, file],
    ["POST", `${path}/files/mkdir`, file],
    ["POST", `${path}/files/remove`, file],
    ["POST", `${path}/pause`],
    ["POST", "/v1/snapshots", { sandbox_id: id }],
  ];
  for (const [method, url, json] of requests)
    assertUnavailable(await afterWait(api.call(method, url, json === undefined ? {} : { json })));
  const field = (disposition: string, text: string) =>
    `--b\r\nContent-Disposition: form-data; ${disposition}\r\n\r\n${text}\r\n`;
  const body = `${field('name="path"', "/root/f")}${field('name="file"; filename="f"', "x")}--b--\r\n`;
  const headers = { "content-type": "multipart/form-data; boundary=b" };
  for (const verb of ["write", "stream/write"])
    assertUnavailable(await afterWait(api.call("POST", `${path}/files/${verb}`, { body, headers })));
});

test("a WebSocket's upgrade is refused likewise", async () => {
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  const { port } = api.app.server.address() as AddressInfo;
  for (const name of ["exec/stream", "pty", "processes/7/stream"]) {
    const socket = new WebSocket(`ws://127.0.0.1:${port}${path}/${name}`, { headers: { "x-api-key": keys.red } });
    const [, response] = (await afterWait(once(socket, "unexpected-response"))) as [unknown, IncomingMessage];
    assert.deepEqual([response.statusCode, response.headers["retry-after"]], [503, "5"]);
    response.destroy();
  }
});

test("GET, the list and ping do not wait, nor do refusals of the status or another team, nor DELETE", async () => {
  assert.equal((await api.call("GET", path)).json.status, "running");
  assert.ok((await api.call("GET", "/v1/capsules")).json.some((view: { id: string }) => view.id === id));
  assert.equal((await api.call("POST", `${path}/ping`)).status, 204);
  assert.equal((await api.call("POST", `${path}/resume`)).status, 409);
  assert.equal((await api.call("POST", `${path}/exec`, { key: keys.blue, json: { cmd: "true" } })).status, 404);
  assert.equal((await api.call("DELETE", path)).status, 204);
});

test("a request that waits goes on when the guest is adopted", async () => {
  const asked = api.call("DELETE", `${path}/processes/7`);
  service.adoptions.end(id);
  assert.notEqual((await asked).status, 503);
});
