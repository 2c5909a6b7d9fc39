/** Needs a real socket: malformed requests, clients that disconnect, refused bodies. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, connect, type Socket } from "node:net";
import { after, before, describe, test } from "node:test";
import { Api, keys } from "../../test/api.ts";
import { waitFor } from "../../test/wait-for.ts";

const api = new Api();
let port = 0;

before(async () => {
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  port = (api.app.server.address() as AddressInfo).port;
});
after(() => api.app.close());

async function open(): Promise<Socket> {
  const socket = connect(port, "127.0.0.1");
  await once(socket, "connect");
  return socket;
}

/** Sends the bytes and reads until the server closes. */
async function exchange(bytes: string): Promise<string> {
  const socket = await open();
  socket.write(bytes, "latin1");
  let text = "";
  for await (const chunk of socket) text += chunk;
  return text;
}

function head(method: string, path: string, headers: string[] = []): string {
  return [`${method} ${path} HTTP/1.1`, "Host: x", `X-API-Key: ${keys.red}`, ...headers, "", ""].join("\r\n");
}

function parse(text: string): { status: number; code: string } {
  const [top = "", body = ""] = text.split("\r\n\r\n", 2);
  return { status: Number(top.split(" ")[1]), code: JSON.parse(body).error.code };
}

test("two Host headers are refused, and none of HTTP/1.1, also on an open page; one of any name is not", async () => {
  const ask = (path: string, ...hosts: string[]) =>
    exchange([`GET ${path} HTTP/1.1`, ...hosts, "Connection: close", "", ""].join("\r\n"));
  for (const path of ["/healthz", "/v1/limits", "/nowhere", "http://example.com/healthz"]) {
    for (const hosts of [["Host: localhost", "host: example.com"], []]) {
      assert.deepEqual(parse(await ask(path, ...hosts)), { status: 400, code: "invalid_request" }, path);
    }
  }
  for (const hosts of [["Host: example.com"], ["Host:"]]) {
    assert.match(await ask("/healthz", ...hosts), /^HTTP\/1\.1 200 /);
  }
  assert.match(await exchange("GET /healthz HTTP/1.0\r\n\r\n"), /^HTTP\/1\.1 200 /);
});

test("a stalled upload is answered with 408, then disconnected", async (t) => {
  const id = await api.capsule();
  const began = new Promise<void>((resolve) => {
    api.agent(id).onUpload = (upload) => {
      const write = upload.write.bind(upload);
      upload.write = (bytes) => write(bytes).finally(() => setImmediate(resolve));
    };
  });
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const type = "Content-Type: multipart/form-data; boundary=b";
  const socket = await open();
  socket.on("error", () => {});
  socket.write(head("POST", `/v1/capsules/${id}/files/write`, [type, "Content-Length: 100000"]));
  const part = (name: string) => `--b\r\nContent-Disposition: form-data; name="${name}"; filename="f"\r\n\r\n`;
  socket.write(`${part("file")}${"x".repeat(4_000)}`);
  await began;
  t.mock.timers.tick(120_000);
  const answer = String((await once(socket, "data"))[0]);
  assert.deepEqual(parse(answer), { status: 408, code: "request_timeout" });
  const closed = once(socket, "close");
  t.mock.timers.tick(10_000);
  await closed;
  assert.ok(api.agent(id).uploads[0]?.cancelled);
});

test("a Content-Type without a body is an empty body", async () => {
  const id = await api.capsule();
  const answer = (path: string, type: string) =>
    exchange(head("POST", `/v1/capsules/${id}/${path}`, [`Content-Type: ${type}`, "Connection: close"]));
  assert.match(await answer("ping", "application/json"), /^HTTP\/1\.1 204 /);
  assert.match(await answer("ping", "text/plain"), /^HTTP\/1\.1 204 /);
  assert.deepEqual(parse(await answer("files/read", "application/json")), { status: 400, code: "invalid_request" });
  const form = await answer("files/write", "multipart/form-data; boundary=b");
  assert.deepEqual(parse(form), { status: 400, code: "invalid_request" });
});

test("an unknown expectation is ignored", async () => {
  const answer = await exchange(head("GET", "/v1/nothing", ["Expect: a miracle", "Connection: close"]));
  assert.deepEqual(parse(answer), { status: 404, code: "not_found" });
});

describe("malformed requests", () => {
  const garbage: [string, string, number, string][] = [
    ["not HTTP", "hello\r\n\r\n", 400, "invalid_request"],
    ["a TLS greeting", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "invalid_request"],
    ["a NUL in the path", "GET /v1/\0 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "invalid_request"],
    ["a bad header", "GET / HTTP/1.1\r\nHost x\r\n\r\n", 400, "invalid_request"],
    ["no host", "GET /nothing HTTP/1.1\r\nConnection: close\r\n\r\n", 400, "invalid_request"],
    ["no host of HTTP/1.0, and no such path", "GET /nothing HTTP/1.0\r\n\r\n", 404, "not_found"],
    ["two lengths", head("POST", "/v1/capsules", ["Content-Length: 1", "Content-Length: 2"]), 400, "invalid_request"],
    [
      "length and chunks",
      head("POST", "/v1/x", ["Content-Length: 1", "Transfer-Encoding: chunked"]),
      400,
      "invalid_request",
    ],
    ["a URL of 20 000 characters", head("GET", `/v1/${"a".repeat(20_000)}`), 431, "headers_too_large"],
    [
      "headers of 20 000 characters",
      head("GET", "/v1/capsules", [`X: ${"a".repeat(20_000)}`]),
      431,
      "headers_too_large",
    ],
  ];
  for (const [what, bytes, status, code] of garbage) {
    test(`${what} is ${status} in JSON`, async () => {
      assert.deepEqual(parse(await exchange(bytes)), { status, code });
    });
  }

  test("dots are an id like any other", async () => {
    for (const path of ["/v1/capsules/..", "/v1/capsules/%2e%2e/ping", "/v1/capsules/../../etc/passwd"]) {
      const method = path.endsWith("ping") ? "POST" : "GET";
      assert.deepEqual(parse(await exchange(head(method, path, ["Connection: close"]))), {
        status: 404,
        code: "not_found",
      });
    }
  });

  test("an incomplete body is dropped, and the server goes on", async () => {
    const socket = await open();
    socket.end(`${head("POST", "/v1/capsules", ["Content-Type: application/json", "Content-Length: 100"])}{"vcpus":`);
    socket.resume();
    await once(socket, "close");
    assert.equal((await api.call("GET", "/healthz")).status, 200);
  });
});

describe("refused bodies", () => {
  test("a client that sends all of its 2 MiB before it reads gets its 413, and keeps its connection", async () => {
    const socket = await open();
    const length = 2 * 1024 * 1024;
    const headers = ["Content-Type: application/json", `Content-Length: ${length}`];
    socket.write(head("POST", "/v1/capsules", headers));
    await new Promise((sent) => socket.write("x".repeat(length), sent));
    const [first] = await once(socket, "data");
    assert.deepEqual(parse(String(first)), { status: 413, code: "too_large" });
    socket.write(head("GET", "/healthz"));
    assert.match(String((await once(socket, "data"))[0]), /^HTTP\/1\.1 200 /);
    socket.destroy();
  });

  test("a chunked body is refused as soon as it is too large", async () => {
    const socket = await open();
    socket.write(head("POST", "/v1/capsules", ["Content-Type: application/json", "Transfer-Encoding: chunked"]));
    const chunk = `10000\r\n${"x".repeat(65_536)}\r\n`;
    for (let sent = 0; sent < 17; sent++) socket.write(chunk);
    const [first] = await once(socket, "data");
    assert.equal(parse(String(first)).status, 413);
    socket.destroy();
  });

  test("without a key the body is not waited for", async () => {
    const socket = await open();
    socket.write(
      "POST /v1/capsules HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n",
    );
    assert.equal(parse(String((await once(socket, "data"))[0])).status, 401);
    socket.destroy();
  });

  test("an empty chunked body is an empty body", async () => {
    const request = head("POST", "/v1/capsules", ["Connection: close", "Transfer-Encoding: chunked"]);
    assert.match(await exchange(`${request}0\r\n\r\n`), /^HTTP\/1\.1 201 /);
  });
});

describe("clients that disconnect", () => {
  test("a foreground command is cancelled and no longer counts as activity", async () => {
    const id = await api.capsule();
    const agent = api.agent(id);
    const running = new Promise<void>((resolve) => {
      agent.onRun = () => resolve();
    });
    const socket = await open();
    const body = '{"cmd":"hang","timeout":0}';
    socket.write(`${head("POST", `/v1/capsules/${id}/exec`, [`Content-Length: ${body.length}`])}${body}`);
    await running;
    assert.equal(api.isBusy(id), true);
    socket.destroy();
    await waitFor("no command runs", () => !api.isBusy(id));
    assert.equal(agent.runs[0]?.cancelled, true);
  });

  test("a wait is aborted", async () => {
    const id = await api.capsule("starting");
    const socket = await open();
    socket.write(head("GET", `/v1/capsules/${id}?wait=running`));
    await waitFor("the request waits", () => api.waits === 1);
    socket.destroy();
    await waitFor("no request waits", () => api.waits === 0);
  });
});

test("a closing server waits for open requests for the drain time only", async () => {
  const other = new Api({}, { drainMs: 1 });
  await other.app.listen({ host: "127.0.0.1", port: 0 });
  const id = await other.capsule("starting");
  const socket = connect((other.app.server.address() as AddressInfo).port, "127.0.0.1");
  socket.write(head("GET", `/v1/capsules/${id}?wait=running`));
  await waitFor("the request waits", () => other.waits === 1);
  socket.resume();
  await Promise.all([once(socket, "close"), other.app.close()]);
  await waitFor("no request waits", () => other.waits === 0);
});

test("a closing server answers all that had reached its port before", async () => {
  const other = new Api();
  await other.app.listen({ host: "127.0.0.1", port: 0 });
  const id = await other.capsule();
  const { port: own } = other.app.server.address() as AddressInfo;
  const sockets = Array.from({ length: 20 }, () => connect(own, "127.0.0.1"));
  for (const socket of sockets) socket.write(head("GET", `/v1/capsules/${id}`));
  // The kernel has the connections then, and the server has not heard of them.
  await new Promise<void>((resolve) => process.nextTick(resolve));
  const closed = other.app.close();
  const answers = sockets.map(async (socket) => {
    let text = "";
    for await (const chunk of socket) text += chunk;
    return text.slice(0, "HTTP/1.1 200 ".length);
  });
  assert.deepEqual(new Set(await Promise.all(answers)), new Set(["HTTP/1.1 200 "]));
  await closed;
});
