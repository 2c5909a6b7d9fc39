/** URLs of ports, with servers in real guests. */
import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { request as httpRequest, type IncomingMessage } from "node:http";
import type { Socket } from "node:net";
import { after, before } from "node:test";
import type { TestCapsule } from "../../client.ts";
import { waitFor, within } from "../../wait-for.ts";
import { section, test } from "../conforms.ts";
import { client } from "../service.ts";

const [port, silentPort, closedPort] = [8_000, 8_001, 8_002];
const uploadBytes = 8 * 1024 * 1024;

/**
 * Answers with the head that it got and the hash of the body; `/events` with a stream, an upgrade with an echo of all bytes. The second
 * server accepts and resets.
 */
const servers = `
import hashlib, re, socket, struct, threading
def serve(peer):
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"):
        byte = peer.recv(1)
        if not byte: return peer.close()
        head += byte
    if re.search(rb"^upgrade: bytes", head, re.I | re.M):
        peer.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: bytes\\r\\n\\r\\n")
        while data := peer.recv(65536): peer.sendall(data)
        return peer.close()
    if re.search(rb"^expect: 100-continue", head, re.I | re.M): peer.sendall(b"HTTP/1.1 100 Continue\\r\\n\\r\\n")
    found = re.search(rb"^content-length: ([0-9]+)", head, re.I | re.M)
    left, digest = int(found[1]) if found else 0, hashlib.sha256()
    while left > 0:
        data = peer.recv(min(left, 65536))
        digest.update(data)
        left -= len(data)
    if head.startswith(b"GET /events"):
        peer.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\n\\r\\ndata: first\\n\\n")
        while data := peer.recv(65536): pass
        return peer.close()
    body = head + digest.hexdigest().encode()
    peer.sendall(b"HTTP/1.1 200 OK\\r\\nX-B: 2\\r\\nx-a: 1\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    peer.close()
def reset(peer):
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
def listen(listener, answer):
    while True: threading.Thread(target=answer, args=[listener.accept()[0]]).start()
for number, answer in [(${port}, serve), (${silentPort}, reset)]:
    threading.Thread(target=listen, args=[socket.create_server(("127.0.0.1", number), backlog=64), answer]).start()
open("/tmp/ready", "w").close()
`;

async function serving(settings: Record<string, unknown> = {}): Promise<TestCapsule> {
  const capsule = await client.capsule(settings);
  await capsule.exec({ cmd: "python3", args: ["-c", servers], background: true });
  await waitFor("the servers listen", async () => (await capsule.run("test", ["-e", "/tmp/ready"])).exit_code === 0);
  return capsule;
}

interface Asked {
  method?: string;
  at?: number;
  key?: string | null;
  headers?: Record<string, string>;
  /** null: sent later. */
  body?: Buffer | null;
}

function hostOf({ id }: TestCapsule, at = port): string {
  return `${at}-${id}.localhost`;
}

function ask(host: string, path: string, { method = "GET", key = client.key, headers = {}, body }: Asked = {}) {
  const { hostname, port: serverPort } = new URL(client.url);
  const sent = { host, ...(key === null ? {} : { "x-api-key": key }), ...headers };
  const request = httpRequest({ host: hostname, port: serverPort, method, path, headers: sent, agent: false });
  request.on("error", () => {});
  if (body === null) request.flushHeaders();
  else request.end(body);
  return request;
}

async function answer(capsule: TestCapsule, path: string, asked: Asked = {}) {
  const request = ask(hostOf(capsule, asked.at), path, asked);
  const [response] = (await within("the answer", once(request, "response"))) as [IncomingMessage];
  let text = "";
  for await (const chunk of response) text += chunk;
  return { status: response.statusCode, raw: response.rawHeaders, headers: response.headers, text };
}

const codeOf = ({ text }: { text: string }): string => JSON.parse(text).error.code;

export const portUrls = section(import.meta, "URLs of ports", () => {
  let capsule: TestCapsule;
  before(async () => {
    capsule = await serving();
  });
  after(() => capsule?.[Symbol.asyncDispose]());

  test("a request and its answer pass byte for byte, without the key", async () => {
    const { status, raw, text } = await answer(capsule, "//a/%2e%2E?q=%zz&capsule_token=x&+", {
      headers: { "x-B": "1", Cookie: "a=1; capsule_token=x", "x-a": "2" },
    });
    assert.equal(status, 200);
    assert.deepEqual(raw.slice(0, 4), ["X-B", "2", "x-a", "1"]);
    const lines = [
      ...["GET //a/%2e%2E?q=%zz&+ HTTP/1.1", `host: ${hostOf(capsule)}`, "x-B: 1", "Cookie: a=1", "x-a: 2"],
      ...["X-Forwarded-For: 127.0.0.1", `X-Forwarded-Host: ${hostOf(capsule)}`, "X-Forwarded-Proto: http"],
      ...["Connection: close", "", createHash("sha256").digest("hex")],
    ];
    assert.equal(text, lines.join("\r\n"));
  });

  test("8 MiB are uploaded whole, also after a 100", async () => {
    const body = randomBytes(uploadBytes);
    const hash = createHash("sha256").update(body).digest("hex");
    assert.ok((await answer(capsule, "/", { method: "POST", body })).text.endsWith(hash));
    const headers = { expect: "100-continue", "content-length": String(body.length) };
    const request = ask(hostOf(capsule), "/", { method: "PUT", headers, body: null });
    await within("the 100", once(request, "continue"));
    request.end(body);
    const [response] = (await within("the answer", once(request, "response"))) as [IncomingMessage];
    let text = "";
    for await (const chunk of response) text += chunk;
    assert.ok(text.endsWith(hash));
  });

  test("events arrive while the answer goes on", async () => {
    const request = ask(hostOf(capsule), "/events");
    const [response] = (await within("the head", once(request, "response"))) as [IncomingMessage];
    const [event] = await within("the event", once(response, "data"));
    assert.equal(String(event), "data: first\n\n");
    request.destroy();
  });

  test("an upgrade is spliced", async () => {
    const headers = { connection: "Upgrade", upgrade: "bytes" };
    const request = ask(hostOf(capsule), "/", { headers });
    const [, socket] = (await within("the 101", once(request, "upgrade"))) as [unknown, Socket];
    const bytes = randomBytes(1024 * 1024);
    socket.end(bytes);
    const echoed: Buffer[] = [];
    for await (const chunk of socket) echoed.push(chunk);
    assert.ok(Buffer.concat(echoed).equals(bytes));
  });

  test("refusals have their codes", async () => {
    assert.equal((await answer(capsule, "/", { key: null })).status, 401);
    assert.equal((await answer(capsule, "/", { key: "capk_none" })).status, 401);
    const closed = await answer(capsule, "/", { at: closedPort });
    assert.deepEqual([closed.status, codeOf(closed)], [502, "port_closed"]);
    assert.deepEqual(JSON.parse(closed.text).error.details.ports, [port, silentPort]);
    const reset = await answer(capsule, "/", { at: silentPort });
    assert.deepEqual([reset.status, codeOf(reset)], [502, "agent_error"]);
    const page = await answer(capsule, "/", { at: closedPort, headers: { accept: "text/html" } });
    assert.match(String(page.headers["content-type"]), /^text\/html/);
  });

  test("the API does not answer below the domain, nor a port elsewhere", async () => {
    assert.ok((await answer(capsule, "/v1/capsules")).text.startsWith("GET /v1/capsules HTTP/1.1\r\n"));
    const request = ask("api.localhost", "/healthz");
    const [response] = (await within("the refusal", once(request, "response"))) as [IncomingMessage];
    assert.equal(response.statusCode, 404);
    response.resume();
    const { json } = await client.expect(200, "GET", "/v1/limits", {
      headers: { "x-forwarded-host": hostOf(capsule) },
    });
    assert.equal(typeof json.port_connections_max, "number");
  });

  test("a link becomes a cookie that opens its port, until the tokens are deleted; a public port asks for nothing", async () => {
    const { json } = await client.expect(200, "POST", `${capsule.path}/ports/${port}/url`, {
      json: { expires_sec: 600 },
    });
    const link = new URL(json.url);
    assert.equal(link.host, `${hostOf(capsule)}:${new URL(client.url).port}`);
    const redirect = await answer(capsule, `${link.pathname}${link.search}`, { key: null });
    assert.equal(redirect.status, 303);
    const [cookie = ""] = redirect.headers["set-cookie"]?.[0]?.split(";") ?? [];
    const headers = { cookie };
    const opened = await answer(capsule, "/x", { key: null, headers });
    assert.equal(opened.status, 200);
    assert.doesNotMatch(opened.text, /token/);
    assert.equal((await answer(capsule, "/", { key: null, headers, at: silentPort })).status, 401);

    const events = ask(hostOf(capsule), "/events", { key: null, headers });
    const [response] = (await within("the head", once(events, "response"))) as [IncomingMessage];
    const cut = new Promise((resolve) =>
      response
        .on("error", () => {})
        .once("close", resolve)
        .resume(),
    );
    await client.expect(204, "DELETE", `${capsule.path}/ports/tokens`);
    await within("what it opened is closed", cut);
    assert.equal((await answer(capsule, "/", { key: null, headers })).status, 401);

    await client.expect(200, "PUT", `${capsule.path}/network`, { json: { public_ports: [port] } });
    assert.equal((await answer(capsule, "/", { key: null })).status, 200);
    await client.expect(200, "PUT", `${capsule.path}/network`, { json: {} });
    assert.equal((await answer(capsule, "/", { key: null })).status, 401);
  });

  test("a request resumes a capsule with auto_resume, and is 409 without", async () => {
    await using sleeper = await serving({ auto_resume: true });
    await sleeper.pause();
    assert.equal((await answer(sleeper, "/", { key: null })).status, 401);
    assert.equal((await answer(sleeper, "/awake")).status, 200);
    await client.expect(200, "PATCH", sleeper.path, { json: { auto_resume: false } });
    await sleeper.pause();
    const refused = await answer(sleeper, "/");
    assert.deepEqual([refused.status, codeOf(refused)], [409, "invalid_state"]);
  });
});
