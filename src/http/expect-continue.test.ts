import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, connect } from "node:net";
import { after, before, describe, test } from "node:test";
import { Api, keys } from "../../test/api.ts";

describe("a client that waits for 100 before it sends its body", () => {
  const api = new Api({ file_write_max_bytes: 1_000 });
  let port = 0;
  before(async () => {
    await api.app.listen({ host: "127.0.0.1", port: 0 });
    port = (api.app.server.address() as AddressInfo).port;
  });
  after(() => api.app.close());

  const json = "application/json";
  const form = "multipart/form-data; boundary=b";

  /** Sends the head, and the body once it was asked for; resolves with all status lines. */
  async function statuses(
    path: string,
    type: string,
    body: string,
    { key = keys.red as string, length = body.length } = {},
  ) {
    const socket = connect(port, "127.0.0.1");
    const head = ["Host: x", `X-API-Key: ${key}`, `Content-Type: ${type}`, `Content-Length: ${length}`];
    socket.write([`POST ${path} HTTP/1.1`, ...head, "Expect: 100-continue", "", ""].join("\r\n"));
    let text = String((await once(socket, "data"))[0]);
    if (text.startsWith("HTTP/1.1 100 ")) {
      socket.write(body);
      text += String((await once(socket, "data"))[0]);
    }
    socket.destroy();
    return [...text.matchAll(/^HTTP\/1\.1 (\d+) /gm)].map(([, status]) => Number(status));
  }

  const file = [
    '--b\r\nContent-Disposition: form-data; name="path"\r\n\r\n/f\r\n',
    '--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\ndata\r\n--b--\r\n',
  ].join("");

  test("is told to send it when it is wanted", async () => {
    const id = await api.capsule();
    assert.deepEqual(await statuses("/v1/capsules", json, "{}"), [100, 201]);
    assert.deepEqual(await statuses("/v1/capsules", json, "no json"), [100, 400]);
    assert.deepEqual(await statuses(`/v1/capsules/${id}/files/write`, form, file), [100, 204]);
    assert.deepEqual(await statuses(`/v1/capsules/${id}/files/stream/write`, form, file), [100, 204]);
  });

  test("gets its refusal instead, by key, route, capsule, state, type and announced size", async () => {
    const [id, paused] = [await api.capsule(), await api.capsule("paused")];
    const key = "capk_wrong";
    assert.deepEqual(await statuses("/v1/capsules", json, "{}", { key }), [401]);
    assert.deepEqual(await statuses("/v1/nothing", json, "{}"), [404]);
    assert.deepEqual(await statuses("/v1/capsules/cl-none/exec", json, "{}"), [404]);
    assert.deepEqual(await statuses(`/v1/capsules/${paused}/exec`, json, "{}"), [409]);
    assert.deepEqual(await statuses("/v1/capsules", "text/plain", "{}"), [415]);
    assert.deepEqual(await statuses("/v1/capsules", json, "", { length: 2 ** 21 }), [413]);
    for (const verb of ["write", "stream/write"]) {
      assert.deepEqual(await statuses(`/v1/capsules/${id}/files/${verb}`, form, file, { key }), [401]);
      assert.deepEqual(await statuses(`/v1/capsules/${paused}/files/${verb}`, form, file), [409]);
      assert.deepEqual(await statuses(`/v1/capsules/${id}/files/${verb}`, json, file), [415]);
    }
    assert.deepEqual(await statuses(`/v1/capsules/${id}/files/write`, form, "", { length: 2 ** 21 }), [413]);
  });

  test("is told that the connection ends after a refusal instead, as it does", async () => {
    const socket = connect(port, "127.0.0.1");
    socket.write("GET /v1/nothing HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n");
    const text = String((await once(socket, "data"))[0]);
    await once(socket, "end");
    assert.match(text, /^HTTP\/1\.1 401 /);
    assert.match(text, /^connection: close\r$/im);
  });
});
