/** A refusal that is sent before the body has arrived reaches clients that write their whole body before they read. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { type AddressInfo, connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { connect as connectTls } from "node:tls";
import { Api, keys } from "../../test/api.ts";
import { waitFor } from "../../test/wait-for.ts";
import { readCertificate } from "./tls.ts";

const mebibyte = 1024 * 1024;
/** More than both ends' socket buffers take. */
const bodyBytes = 20 * mebibyte;
const limits = { file_write_max_bytes: mebibyte, body_max_bytes: 64 * 1024 };

interface Endpoint {
  api: Api;
  connect(): Promise<Socket>;
}

/** Sends everything, and only then reads to the end. Rejects when the connection breaks before that. */
async function writeThenRead(socket: Socket, head: string, body: AsyncIterable<Buffer> | Iterable<Buffer>) {
  let failure: Error | undefined;
  socket.on("error", (error) => {
    failure ??= error;
  });
  const write = (bytes: string | Buffer) =>
    new Promise<void>((resolve, reject) => socket.write(bytes, (error) => (error == null ? resolve() : reject(error))));
  await write(head);
  for await (const chunk of body) await write(chunk);
  let text = "";
  for await (const chunk of socket) {
    text += chunk;
    if (!isClosing(text) && isWhole(text)) break;
  }
  if (failure !== undefined) throw failure;
  return parse(text);
}

function isClosing(text: string): boolean {
  return /^connection: close\r$/im.test(text);
}

function isWhole(text: string): boolean {
  const length = /^content-length: (\d+)\r$/im.exec(text)?.[1];
  return length !== undefined && text.length >= text.indexOf("\r\n\r\n") + 4 + Number(length);
}

function parse(text: string): { status: number; code: string } {
  const [top = "", body = ""] = text.split("\r\n\r\n", 2);
  return { status: Number(top.split(" ")[1]), code: JSON.parse(body).error.code };
}

function* zeros(bytes: number): Iterable<Buffer> {
  const chunk = Buffer.alloc(64 * 1024, "0");
  for (let sent = 0; sent < bytes; sent += chunk.length) yield chunk;
}

function* chunked(chunks: Iterable<Buffer>): Iterable<Buffer> {
  for (const chunk of chunks)
    yield Buffer.concat([Buffer.from(`${chunk.length.toString(16)}\r\n`), chunk, Buffer.from("\r\n")]);
  yield Buffer.from("0\r\n\r\n");
}

interface Refusal {
  status: number;
  code: string;
  path: string;
  key?: string;
  type?: string;
  /** Sent before the zeros. */
  begins?: string;
}

const json = "application/json";
const form = "multipart/form-data; boundary=b";
const part = '--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n';

function refusalsOf(running: string, paused: string): Refusal[] {
  const uploads = ["files/write", "files/stream/write"].flatMap((verb): Refusal[] => [
    { status: 401, code: "unauthorized", path: `/v1/capsules/${running}/${verb}`, type: form, key: "capk_wrong" },
    { status: 404, code: "not_found", path: `/v1/capsules/cl-none/${verb}`, type: form },
    { status: 409, code: "invalid_state", path: `/v1/capsules/${paused}/${verb}`, type: form },
    { status: 415, code: "unsupported_media_type", path: `/v1/capsules/${running}/${verb}`, type: json },
  ]);
  return [
    ...uploads,
    {
      status: 400,
      code: "invalid_request",
      path: `/v1/capsules/${running}/files/stream/write`,
      type: form,
      begins: "--b\r\n\r\n",
    },
    { status: 413, code: "too_large", path: `/v1/capsules/${running}/files/write`, type: form, begins: part },
    // Which has no 413: the file has no limit there, and a path that is too long is 400.
    {
      status: 400,
      code: "invalid_request",
      path: `/v1/capsules/${running}/files/stream/write`,
      type: form,
      begins: part.replace("file", "path"),
    },
    { status: 413, code: "too_large", path: "/v1/capsules" },
    { status: 413, code: "too_large", path: "/v1/sign-in" },
    { status: 401, code: "unauthorized", path: "/v1/capsules", key: "capk_wrong" },
    { status: 401, code: "unauthorized", path: "/v1/nothing", key: "capk_wrong" },
    { status: 404, code: "not_found", path: "/v1/nothing" },
    { status: 404, code: "not_found", path: "/v1/capsules/cl-none/exec" },
    { status: 405, code: "method_not_allowed", path: "/v1/limits" },
    { status: 409, code: "invalid_state", path: `/v1/capsules/${paused}/exec` },
    { status: 415, code: "unsupported_media_type", path: "/v1/capsules", type: "text/plain" },
    { status: 400, code: "invalid_request", path: "/v1/capsules/%zz" },
  ];
}

const manners: [string, string, string, string[]][] = [
  ["that asks for Connection: close", "length", "HTTP/1.1", ["Connection: close"]],
  ["that keeps the connection", "length", "HTTP/1.1", []],
  ["of HTTP/1.0", "length", "HTTP/1.0", []],
  ["of HTTP/1.0 that keeps the connection", "length", "HTTP/1.0", ["Connection: keep-alive"]],
  ["that sends chunks and asks for Connection: close", "chunks", "HTTP/1.1", ["Connection: close"]],
];

function headOf({ path, key = keys.red, type = json }: Refusal, version: string, headers: string[]): string {
  const fixed = ["Host: x", `X-API-Key: ${key}`, `Content-Type: ${type}`];
  return [`POST ${path} ${version}`, ...fixed, ...headers, "", ""].join("\r\n");
}

const folder = mkdtempSync(join(tmpdir(), "refused-"));
after(() => rmSync(folder, { recursive: true }));

function makeCertificate(): { certPath: string; keyPath: string } {
  const [certPath, keyPath] = [join(folder, "cert.pem"), join(folder, "cert.key")];
  const subject = ["-subj", "/CN=refused", "-addext", "subjectAltName=IP:127.0.0.1"];
  const kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
  execFileSync("openssl", ["req", ...kind, ...subject, "-keyout", keyPath, "-out", certPath], { stdio: "pipe" });
  return { certPath, keyPath };
}

async function start(
  isTls: boolean,
  options: ConstructorParameters<typeof Api>[1] = {},
  moreLimits: ConstructorParameters<typeof Api>[0] = {},
): Promise<Endpoint> {
  const files = isTls ? makeCertificate() : undefined;
  const certificate = files === undefined ? undefined : readCertificate(files);
  const api = new Api({ ...limits, refused_keys_per_sec: 1_000, ...moreLimits }, { certificate, ...options });
  await api.app.listen({ host: "127.0.0.1", port: 0 });
  const { port } = api.app.server.address() as AddressInfo;
  return {
    api,
    async connect() {
      const socket = isTls
        ? connectTls({ host: "127.0.0.1", port, ca: readFileSync(files!.certPath) })
        : connect(port, "127.0.0.1");
      socket.pause();
      await once(socket, isTls ? "secureConnect" : "connect");
      return socket;
    },
  };
}

for (const isTls of [false, true]) {
  describe(`${isTls ? "TLS" : "plain"}: a client that writes 20 MiB before it reads gets its refusal`, () => {
    let endpoint: Endpoint;
    let refusals: Refusal[];
    before(async () => {
      endpoint = await start(isTls);
      refusals = refusalsOf(await endpoint.api.capsule(), await endpoint.api.capsule("paused"));
    });
    after(() => endpoint.api.app.close());

    for (const [who, framing, version, headers] of manners) {
      test(`one ${who}`, async (t) => {
        t.mock.timers.enable({ apis: ["setTimeout"] }); // however long the writing takes
        for (const refusal of refusals) {
          const { status, code, path, begins = "" } = refusal;
          const socket = await endpoint.connect();
          const body = [Buffer.from(begins), ...zeros(bodyBytes)].filter((chunk) => chunk.length > 0);
          const length = begins.length + bodyBytes;
          const announced = framing === "length" ? `Content-Length: ${length}` : "Transfer-Encoding: chunked";
          const head = headOf(refusal, version, [...headers, announced]);
          const answer = await writeThenRead(socket, head, framing === "length" ? body : chunked(body)).catch(
            (error: NodeJS.ErrnoException) => error.code ?? error.message,
          );
          socket.destroy();
          assert.deepEqual(answer, { status, code }, path);
        }
      });
    }

    test("one whose JSON is refused on a route that is there, and whose chunks are none", async (t) => {
      t.mock.timers.enable({ apis: ["setTimeout"] }); // however long the writing takes
      const path = `/v1/capsules/${await endpoint.api.capsule()}/exec`;
      const refusal = { status: 400, code: "invalid_request", path };
      for (const [begins, size] of [
        ['{"cmd":7}', 0],
        ['{"cmd":', limits.body_max_bytes / 2],
      ] as const) {
        const head = headOf(refusal, "HTTP/1.1", ["Connection: close", `Content-Length: ${begins.length + size}`]);
        const answer = await writeThenRead(await endpoint.connect(), head, [Buffer.from(begins), Buffer.alloc(size)]);
        assert.deepEqual(answer, { status: 400, code: "invalid_request" }, begins);
      }
      for (const chunks of ["zz\r\n", '9\r\n{"cmd":7}zz\r\n']) {
        const head = headOf(refusal, "HTTP/1.1", ["Transfer-Encoding: chunked"]);
        const body = [Buffer.from(chunks), ...zeros(bodyBytes)];
        const answer = await writeThenRead(await endpoint.connect(), head, body);
        assert.deepEqual(answer, { status: 400, code: "invalid_request" }, chunks);
      }
    });

    test("one whose bytes are no request", async (t) => {
      t.mock.timers.enable({ apis: ["setTimeout"] }); // however long the writing takes
      const socket = await endpoint.connect();
      const head = "POST /v1/capsules HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n";
      const answer = await writeThenRead(socket, head, zeros(bodyBytes));
      assert.deepEqual(answer, { status: 400, code: "invalid_request" });
    });
  });
}

test("a refused upload ends its connection, since not every client sends the rest; a JSON body of 2 MiB does not", async () => {
  const { api, connect: open } = await start(false);
  const headOfRefused = async (path: string, headers: string[]) => {
    const socket = await open();
    socket.write(
      headOf({ status: 404, code: "not_found", path, type: headers[0] ?? json }, "HTTP/1.1", headers.slice(1)),
    );
    const [bytes] = await once(socket.resume(), "data");
    socket.destroy();
    return String(bytes);
  };
  const length = `Content-Length: ${bodyBytes}`;
  assert.ok(isClosing(await headOfRefused("/v1/capsules/cl-none/files/write", [form, length])));
  assert.ok(
    isClosing(await headOfRefused("/v1/capsules/cl-none/files/stream/write", [form, "Transfer-Encoding: chunked"])),
  );
  assert.ok(isClosing(await headOfRefused("/v1/nothing", [json, "Transfer-Encoding: chunked"])));
  assert.ok(isClosing(await headOfRefused("/v1/nothing", [json, length])));
  assert.ok(!isClosing(await headOfRefused("/v1/nothing", [json, `Content-Length: ${2 * mebibyte}`])));
  await api.app.close();
});

describe("what is read of a refused body is bounded", () => {
  let endpoint: Endpoint;
  before(async () => {
    endpoint = await start(false);
  });
  after(() => endpoint.api.app.close());

  const refused = { status: 401, code: "unauthorized", path: "/v1/capsules", key: "capk_wrong" };
  const announced = (bytes: number, manner = "Connection: close") =>
    headOf(refused, "HTTP/1.1", [manner, `Content-Length: ${bytes}`]);

  /** Whose body never comes. It stays half open when the server ends its side. */
  async function openRefused(localAddress: string, manner?: string, { api } = endpoint): Promise<Socket> {
    const { port } = api.app.server.address() as AddressInfo;
    const socket = connect({ port, host: "127.0.0.1", localAddress, allowHalfOpen: true });
    socket.on("error", () => {}).write(announced(mebibyte, manner));
    const [answer] = await once(socket, "data");
    assert.deepEqual(parse(String(answer)), { status: 401, code: "unauthorized" });
    return socket.resume();
  }

  function connections(): Promise<number> {
    return new Promise((resolve) => endpoint.api.app.server.getConnections((_error, count) => resolve(count)));
  }

  test("by bytes, 32 MiB, or for uploads the largest file and 32 MiB: whoever sends on is reset", async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] }); // however long the writing takes
    const fileMib = 48;
    const larger = await start(false, {}, { file_write_max_bytes: fileMib * mebibyte });
    const bounds: [path: string, mib: number][] = [
      ["/v1/capsules", 32],
      ["/v1/capsules/cl-none/files/write", fileMib + 1 + 32],
      ["/v1/capsules/cl-none/files/stream/write", fileMib + 1 + 32], // without a limit of its own
    ];
    for (const [path, mib] of bounds) {
      const type = path.endsWith("write") ? form : json;
      const socket = await larger.connect();
      const head = headOf({ ...refused, path, type }, "HTTP/1.1", [`Content-Length: ${2 ** 40}`]);
      await assert.rejects(writeThenRead(socket, head, zeros(2 ** 40)), /ECONNRESET|EPIPE/);
      assert.ok(socket.bytesWritten >= mib * mebibyte, `${path}: reset after ${socket.bytesWritten} bytes`);
      assert.ok(socket.bytesWritten < (mib + 24) * mebibyte, `${path}: reset after ${socket.bytesWritten} bytes`);
    }
    await larger.api.app.close();
  });

  test("a refused upload of the largest file and 32 MiB gets its answer, also where it is refused for its size", async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] }); // however long the writing takes
    const fileMib = 8;
    const larger = await start(false, {}, { file_write_max_bytes: fileMib * mebibyte });
    const id = await larger.api.capsule();
    const bytes = (fileMib + 32) * mebibyte;
    const refusals: Refusal[] = [
      { status: 404, code: "not_found", path: "/v1/capsules/cl-none/files/write" },
      { status: 404, code: "not_found", path: "/v1/capsules/cl-none/files/stream/write" },
      { status: 413, code: "too_large", path: `/v1/capsules/${id}/files/write`, begins: part },
    ];
    for (const { status, code, path, begins = "" } of refusals) {
      for (const manner of ["Connection: close", "Connection: keep-alive"]) {
        const length = `Content-Length: ${begins.length + bytes}`;
        const head = headOf({ status, code, path, type: form }, "HTTP/1.1", [manner, length]);
        const answer = await writeThenRead(await larger.connect(), `${head}${begins}`, zeros(bytes));
        assert.deepEqual(answer, { status, code }, `${path}, ${manner}`);
      }
    }
    await larger.api.app.close();
  });

  test("by time, on connections that close and on those that would be kept", async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] });
    for (const manner of ["Connection: close", "Connection: keep-alive"]) {
      const socket = await openRefused("127.0.0.1", manner);
      t.mock.timers.tick(9_999);
      const younger = await openRefused("127.0.0.2");
      assert.equal(await connections(), 2);
      t.mock.timers.tick(1);
      await waitFor("the older is closed", async () => (await connections()) <= 1);
      younger.destroy();
      socket.destroy();
      await waitFor("all are closed", async () => (await connections()) === 0);
    }
  });

  test("by sockets of one address, and no other address notices", async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] }); // however long the writing takes
    const held = await Promise.all(Array.from({ length: 8 }, () => openRefused("127.0.0.3")));
    const more = await openRefused("127.0.0.3");
    await waitFor("the ninth is closed", async () => (await connections()) <= 8);
    assert.equal(more.writable, true, "only the server has closed it");
    const other = await writeThenRead(await endpoint.connect(), announced(bodyBytes), zeros(bodyBytes));
    assert.deepEqual(other, { status: 401, code: "unauthorized" });
    for (const socket of held) {
      assert.equal(socket.closed, false);
      socket.end();
    }
    await waitFor("all are closed", async () => (await connections()) === 0);
    const again = await openRefused("127.0.0.3");
    again.write(Buffer.alloc(mebibyte));
    await once(again, "end");
    again.destroy();
  });

  test("by the address's limit on connections, which they count against", async (t) => {
    t.mock.timers.enable({ apis: ["setTimeout"] }); // however long the writing takes
    const limited = await start(false, {}, { connections_per_address_max: 2 });
    const held = [
      await openRefused("127.0.0.1", undefined, limited),
      await openRefused("127.0.0.1", undefined, limited),
    ];
    const more = (await limited.connect()).on("error", () => {});
    let told = "";
    more.on("data", (chunk) => {
      told += chunk;
    });
    await once(more.resume(), "close");
    assert.equal(told, "", "it was accepted, and told after 20 s to send a request");
    for (const socket of held) assert.equal(socket.writable, true);
    for (const socket of held) socket.destroy();
    await limited.api.app.close();
  });

  test("a client that resets its connection with its request is no failure of the server", async () => {
    const api = new Api();
    await api.app.listen({ host: "127.0.0.1", port: 0 });
    const { port } = api.app.server.address() as AddressInfo;
    const request = `POST /v1/capsules HTTP/1.1\r\nHost: a\r\nX-API-Key: ${keys.red}\r\nContent-Length: 9\r\n\r\n{`;
    // Another process, while this one waits: the server accepts the connection when it has been reset.
    const client = `const socket = require("node:net").connect(${port}, "127.0.0.1", () =>
      socket.write(${JSON.stringify(request)}, () => socket.resetAndDestroy()))`;
    for (let each = 0; each < 3; each++) execFileSync(process.execPath, ["-e", client]);
    await (await fetch(`http://127.0.0.1:${port}/healthz`)).text();
    await api.app.close();
    const failures = api.log.filter((line) => JSON.parse(line).level >= 50);
    assert.deepEqual(failures, []);
  });

  test("a client that ends half-way is told once, and let go", async () => {
    const socket = await openRefused("127.0.0.4", "Connection: keep-alive");
    socket.end("half");
    let more = "";
    for await (const chunk of socket) more += chunk;
    assert.equal(more, "");
  });

  test("the server's side ends with the answer, so that a client that reads to the end need not wait", async () => {
    const socket = await openRefused("127.0.0.5");
    await once(socket, "end");
    assert.equal(socket.writable, true);
    socket.write("0");
    socket.end();
    await once(socket, "close");
  });
});
