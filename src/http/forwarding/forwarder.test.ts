/** Two HTTP servers over fake hosts, of which one holds the capsules and the other passes requests on. */
import assert from "node:assert/strict";
import { hash } from "node:crypto";
import { once } from "node:events";
import { Agent, type IncomingMessage, request as send } from "node:http";
import { type AddressInfo, connect } from "node:net";
import type { Readable } from "node:stream";
import { after, before, describe, test } from "node:test";
import { WebSocket } from "ws";
import { Api, keys } from "../../../test/api.ts";
import { CountedRequests } from "../../../test/fakes/counted-requests.ts";
import { FakeCluster } from "../../../test/fakes/fake-cluster.ts";
import { TcpLink } from "../../../test/fakes/tcp-link.ts";
import { GuestServer } from "../../../test/port-urls.ts";
import { waitFor, within } from "../../../test/wait-for.ts";
import { TeamRows } from "../../db/team-rows.ts";

const cluster = new FakeCluster();
const onA = cluster.join("a", () => a.service.store);
const onB = cluster.join("b", () => b.service.store);
const [atA, atB] = [new CountedRequests(), new CountedRequests()];
const a: Api = new Api({}, { forwarding: onA.forwarder, metrics: { service: atA, to: "loopback" } });
const b: Api = new Api({}, { forwarding: onB.forwarder, metrics: { service: atB, to: "loopback" } });
let portA = 0;
let portB = 0;
let link: TcpLink;
const kept = new Agent({ keepAlive: true });

before(async () => {
  portA = await listening(a);
  portB = await listening(b);
  await Promise.all([onA.open(), onB.open()]);
  link = await TcpLink.to(cluster.ports.get("a") as number);
  cluster.ports.set("a", link.port);
});

after(async () => {
  kept.destroy();
  await Promise.all([a.app.close(), b.app.close()]);
  await link[Symbol.asyncDispose]();
});

async function listening({ app }: Api): Promise<number> {
  await app.listen({ host: "127.0.0.1", port: 0 });
  return (app.server.address() as AddressInfo).port;
}

interface Asked {
  method?: string;
  key?: string | null;
  headers?: Record<string, string>;
  body?: string | Buffer;
  /** Default: a connection of its own, which the request closes. */
  agent?: Agent | undefined;
}

interface Answered {
  status: number;
  rawHeaders: string[];
  body: string;
}

function ask(
  port: number,
  path: string,
  { method = "GET", key = keys.red, headers = {}, body, agent }: Asked = {},
): Promise<Answered> {
  const { promise, resolve, reject } = Promise.withResolvers<Answered>();
  const message = send({
    ...{ port, path, method, agent: agent ?? false },
    headers: { ...(key === null ? {} : { "x-api-key": key }), ...headers },
  });
  message.on("error", reject).on("response", (answer) => {
    void collected(answer).then(
      (text) => resolve({ status: answer.statusCode as number, rawHeaders: answer.rawHeaders, body: text }),
      reject,
    );
  });
  message.end(body);
  return within(`${method} ${path} is answered`, promise);
}

function keyRow(id: string, key: string) {
  return {
    ...{ id, teamId: "team-red", label: id, prefix: key.slice(0, 9), hash: hash("sha256", key), createdAt: 0 },
    ...{ expiresAt: null, madeBy: null, isSession: false },
  };
}

async function collected(answer: Readable): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of answer) chunks.push(chunk);
  return Buffer.concat(chunks).toString("latin1");
}

/** A text message of a client, under a mask of zeros. */
function masked(text: string): Buffer {
  const header = Buffer.alloc(14);
  header.set([0x81, 0xff]);
  header.writeBigUInt64BE(BigInt(text.length), 2);
  return Buffer.concat([header, Buffer.from(text)]);
}

/** Without what differs between two answers of one host: times, the digits of a duration too. */
function comparable({ status, rawHeaders, body }: Answered) {
  const differing = body.includes('"duration_ms":')
    ? /^(x-request-id|date|content-length)$/i
    : /^(x-request-id|date)$/i;
  const headers = rawHeaders.map((value, at) =>
    differing.test(rawHeaders[at - 1] ?? "") && at % 2 === 1 ? "…" : value,
  );
  return { status, headers, body: body.replace(/"duration_ms":\d+/, '"duration_ms":0') };
}

const json = { "content-type": "application/json" };

describe("a request to a host that does not hold its capsule", () => {
  test("gets the holder's answer: the same bytes and headers", async () => {
    const id = await a.capsule();
    const requests: [string, Asked][] = [
      ["", {}],
      ["", { method: "HEAD" }],
      ["?wait=running", {}],
      ["/exec", { method: "POST", headers: json, body: '{"cmd":"echo","args":["hi"]}' }],
      ["/exec", { method: "POST", headers: json, body: '{"cmd":' }],
      ["/exec", { method: "POST", headers: { ...json, "transfer-encoding": "chunked" }, body: '{"cmd":"echo"}' }],
      ["/exec", { method: "POST", headers: { "content-type": "text/plain" }, body: "a" }],
      ["/exec", { method: "POST", headers: { ...json, expect: "100-continue" }, body: '{"cmd":"echo"}' }],
      ["", { method: "PATCH", headers: json, body: '{"labels":{"a":"b"},"odd":1}' }],
      ["/nothing", {}],
      ["", { headers: { origin: "https://elsewhere.example" } }],
      ["/resume", { method: "POST" }],
    ];
    for (const [suffix, asked] of requests) {
      for (const agent of [kept, undefined]) {
        const direct = await ask(portA, `/v1/capsules/${id}${suffix}`, { ...asked, agent });
        const hop = await ask(portB, `/v1/capsules/${id}${suffix}`, { ...asked, agent });
        assert.deepEqual(comparable(hop), comparable(direct), `${asked.method ?? "GET"} ${suffix}`);
      }
    }
  });

  test("may announce trailers, with a body in chunks and without one", async () => {
    const id = await a.capsule();
    const capture = JSON.stringify({ sandbox_id: id, name: "trailed" });
    const chunked = ["Content-Type: application/json", "Transfer-Encoding: chunked", "Trailer: X-Sum"];
    const inChunks = (body: string) => `${body.length.toString(16)}\r\n${body}\r\n0\r\nX-Sum: 1\r\n\r\n`;
    for (const [line, headers, body, status] of [
      [`GET /v1/capsules/${id}`, ["Trailer: X-Sum"], "", 200],
      [`POST /v1/capsules/${id}/exec`, chunked, inChunks('{"cmd":"echo"}'), 200],
      ["POST /v1/snapshots", chunked, inChunks(capture), 201],
    ] as const) {
      const lines = [
        `${line} HTTP/1.1`,
        "Host: x",
        `X-API-Key: ${keys.red}`,
        "Connection: close",
        ...headers,
        "",
        body,
      ];
      const socket = connect(portB, "127.0.0.1");
      socket.write(lines.join("\r\n"));
      const text = await within("the answer", collected(socket));
      assert.equal(text.slice(0, 12), `HTTP/1.1 ${status}`, line);
    }
  });

  test("finds it by its name, and by the id in a body", async () => {
    const id = await a.capsule();
    await a.call("PATCH", `/v1/capsules/${id}`, { json: { name: "web" } });
    const named = await ask(portB, "/v1/capsules/web");
    assert.equal(JSON.parse(named.body).id, id);
    const body = JSON.stringify({ sandbox_id: "web", name: "kept" });
    const captured = await ask(portB, "/v1/snapshots", { method: "POST", headers: json, body });
    assert.deepEqual([captured.status, JSON.parse(captured.body).name], [201, "kept"]);
    assert.equal(a.service.store.get(id), undefined);
  });

  test("costs the holder no statement and no request to a peer, and the other host one lookup", async () => {
    const id = await a.capsule();
    const before = [onA.holders.statements, onB.holders.statements, onA.forwarder.passedOn, onB.forwarder.passedOn];
    await ask(portA, `/v1/capsules/${id}`);
    await ask(portB, `/v1/capsules/${id}`);
    const counts = [onA.holders.statements, onB.holders.statements, onA.forwarder.passedOn, onB.forwarder.passedOn];
    assert.deepEqual(
      counts.map((count, at) => count - (before[at] as number)),
      [0, 1, 0, 1],
    );
  });

  test("is counted by the host that answers it, and once as passed on by the other one", async () => {
    const id = await a.capsule();
    const before = { ...onB.forwarder.counts };
    const [ofA, ofB] = [atA, atB].map(({ ended }) => ended.length);
    assert.equal((await ask(portB, `/v1/capsules/${id}`)).status, 200);
    assert.equal((await ask(portB, `/v1/capsules/cl-${"z".repeat(25)}`)).status, 404);
    await waitFor("both are counted", () => atA.ended.length > ofA! && atB.ended.length > ofB!);
    assert.deepEqual(atA.ended.slice(ofA), ["GET /v1/capsules/:id 200"]);
    assert.deepEqual(atB.ended.slice(ofB), ["GET /v1/capsules/:id 404"]);
    assert.deepEqual(onB.forwarder.counts, { ...before, answered: before.answered + 1 });
  });

  test("unknown and foreign ids get the same bytes on every host, after the same lookup", async () => {
    const foreign = await a.capsule("running", keys.blue);
    const here = await b.capsule("running", keys.blue);
    const ids = [foreign, here, `cl-${"z".repeat(25)}`, "no-such-name"];
    const answers = new Set<string>();
    for (const port of [portA, portB]) {
      for (const id of ids) {
        const before = onA.holders.statements + onB.holders.statements;
        const answer = comparable(await ask(port, `/v1/capsules/${id}`));
        assert.equal(onA.holders.statements + onB.holders.statements, before + 1, id);
        const length = String(answer.body.length);
        answers.add(JSON.stringify(answer).replaceAll(id, "{id}").replace(`"${length}"`, '"length"'));
      }
    }
    assert.equal(answers.size, 1, [...answers].join("\n"));
  });

  test("is in the holder's audit log, with the client's address and key, and in no other one", async () => {
    const id = await a.capsule();
    const body = '{"cmd":"echo","args":["once"]}';
    await ask(portB, `/v1/capsules/${id}/exec`, { method: "POST", headers: json, body });
    const entries = async (api: Api) => (await api.call("GET", `/v1/audit?capsule=${id}`)).json.entries;
    const execs = (await entries(a)).filter(({ action }: { action: string }) => action === "exec");
    assert.deepEqual(
      execs.map(({ key_id, address, status }: Record<string, unknown>) => ({ key_id, address, status })),
      [{ key_id: "key-red", address: "127.0.0.1", status: 200 }],
    );
    assert.deepEqual(await entries(b), []);
  });

  test("a revoked key is refused where it arrives, and no header of a client is believed", async () => {
    const id = await a.capsule();
    const identity = { teamId: "team-red", keyId: "key-red", keyName: "first", team: "red" };
    const forged = Buffer.from(
      JSON.stringify({ identity, address: "192.0.2.9", remote: "192.0.2.9", requestId: "f".repeat(32) }),
    ).toString("base64url");
    for (const port of [portA, portB]) {
      const headers = { "x-capsule-caller": forged };
      assert.equal((await ask(port, `/v1/capsules/${id}`, { key: null, headers })).status, 401);
      const own = await ask(port, `/v1/capsules/${id}`, { headers });
      assert.equal(own.status, 200);
      assert.ok(!own.rawHeaders.includes("f".repeat(32)));
    }
  });
});

describe("a key that only one host has heard the last of", () => {
  test("is refused where the holder has it as ended", async () => {
    const id = await a.capsule();
    const rows = [a, b].map(({ service }) => new TeamRows(service.database));
    const key = `capk_${"c".repeat(48)}`;
    for (const each of rows) each.insertKey(keyRow("key-ended", key));
    assert.equal((await ask(portB, `/v1/capsules/${id}`, { key })).status, 200);
    a.service.teams.revokeKey("key-ended");
    assert.equal((await ask(portB, `/v1/capsules/${id}`, { key })).status, 401);
  });
});

describe("streams", () => {
  test("a port's URL goes to the holder: an answer is passed on as it comes, and its client's end reaches the guest", async () => {
    const id = await a.capsule();
    const server = new GuestServer(a, id, 80, (connection, text) => {
      if (text.endsWith("\r\n\r\n"))
        connection.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n");
    });
    const headers = { host: `80-${id}.localhost`, "x-api-key": keys.red };
    const message = send({ port: portB, path: "/a?b", headers, agent: false }).on("error", () => {});
    message.end();
    const [answer] = (await within("the head", once(message, "response"))) as [IncomingMessage];
    let text = "";
    answer.on("data", (chunk) => {
      text += chunk;
    });
    answer.on("error", () => {});
    await waitFor("the first chunk", () => text === "one");
    const [guest] = server.connections;
    guest?.write("3\r\ntwo\r\n");
    await waitFor("the second chunk", () => text === "onetwo");
    message.destroy();
    await waitFor("the guest's connection ends", () => guest?.destroyed);
    assert.match(server.heard[0] as string, /^GET \/a\?b HTTP\/1\.1\r\n(.+\r\n)*X-Forwarded-For: 127\.0\.0\.1\r\n/);
    assert.doesNotMatch(server.heard[0] as string, /caller/i);
  });

  test("a port that nobody may use, and one of no capsule, get the same answer on every host", async () => {
    const answers = new Set<string>();
    for (const port of [portA, portB]) {
      for (const id of [await a.capsule(), `cl-${"z".repeat(25)}`]) {
        const { status, body } = await ask(port, "/", { key: null, headers: { host: `80-${id}.localhost` } });
        answers.add(`${status} ${body}`);
      }
    }
    assert.equal(answers.size, 1, [...answers].join("\n"));
    assert.match([...answers][0] as string, /^401 /);
  });

  test("a signed URL is checked by the holder; a large body goes through whole", async () => {
    const id = await a.capsule();
    const bytes = Buffer.alloc(4 * 1024 * 1024, "x");
    const url = async (method: string) => {
      const body = JSON.stringify({ path: "/big", method });
      const { body: text } = await ask(portB, `/v1/capsules/${id}/files/url`, { method: "POST", headers: json, body });
      return JSON.parse(text).url as string;
    };
    const pathOf = (text: string) => text.replace(/^https?:\/\/[^/]+/, "");
    const [put, get] = [pathOf(await url("PUT")), pathOf(await url("GET"))];
    const written = await ask(portB, put, { method: "PUT", key: null, body: bytes });
    assert.equal(written.status, 204, written.body);
    const part = await ask(portB, get, { key: null, headers: { range: "bytes=5-9" } });
    assert.deepEqual([part.status, part.body], [206, "xxxxx"]);
    assert.equal((await ask(portB, get, { key: null })).body.length, bytes.length);
    assert.equal(
      (
        await ask(
          portB,
          get.replace(/.$/, (last) => (last === "A" ? "B" : "A")),
          { key: null },
        )
      ).status,
      401,
    );
  });

  test("a terminal is spliced, and closes as the holder closes it", async () => {
    const id = await a.capsule();
    const socket = new WebSocket(`ws://127.0.0.1:${portB}/v1/capsules/${id}/exec/stream`, {
      headers: { "x-api-key": keys.red },
    });
    const messages: string[] = [];
    socket.on("message", (data) => void messages.push(data.toString()));
    await within("the socket opens", once(socket, "open"));
    socket.send(JSON.stringify({ type: "start", cmd: "echo", args: ["through"] }));
    const [code] = await within("the socket closes", once(socket, "close"));
    assert.equal(code, 1000);
    assert.match(messages.join("\n"), /through/);
  });

  test("bytes before the answer to an upgrade are taken as the holder takes them", async () => {
    const id = await a.capsule();
    const upgrade = (host: string, path: string) =>
      [
        ...[
          `GET ${path} HTTP/1.1`,
          `Host: ${host}`,
          `X-API-Key: ${keys.red}`,
          "Connection: Upgrade",
          "Upgrade: websocket",
        ],
        ...["Sec-WebSocket-Version: 13", `Sec-WebSocket-Key: ${"A".repeat(22)}==`, "", ""],
      ].join("\r\n");
    new GuestServer(a, id, 80, () => {}); // answers nothing
    const refusals = new Set<string>();
    const start = JSON.stringify({ type: "start", cmd: "echo", args: ["x".repeat(100_000)] });
    for (const port of [portA, portB]) {
      const refused = connect(port, "127.0.0.1").on("error", () => {});
      refused.write(upgrade(`80-${id}.localhost`, "/"));
      refused.write(Buffer.alloc(100_000));
      const text = await within("the refusal", collected(refused));
      refusals.add(text.replaceAll(/^(x-request-id|date): .*$/gim, "$1"));
      const early = connect(port, "127.0.0.1").on("error", () => {});
      let heard = "";
      early.on("data", (chunk) => {
        heard += chunk.toString("latin1");
      });
      early.write(upgrade("x", `/v1/capsules/${id}/exec/stream`));
      early.write(masked(start));
      await waitFor("the command's output", () => heard.includes("xxx"));
      assert.match(heard, /^HTTP\/1\.1 101 /);
      early.destroy();
    }
    assert.equal(refusals.size, 1, [...refusals].join("\n"));
    assert.match([...refusals][0] as string, /^HTTP\/1\.1 400 /);
    assert.match([...refusals][0] as string, /before the answer/);
  });

  test("a WebSocket through a host that stops ends with 1001, as one to its holder does", async () => {
    const own = new FakeCluster();
    const onC = own.join("c", () => c.service.store);
    const onD = own.join("d", () => d.service.store);
    const c: Api = new Api({}, { forwarding: onC.forwarder });
    const d: Api = new Api({}, { forwarding: onD.forwarder });
    const ports = [await listening(c), await listening(d)];
    await Promise.all([onC.open(), onD.open()]);
    const id = await c.capsule();
    const opened = async (port: number | undefined) => {
      const socket = new WebSocket(`ws://127.0.0.1:${port}/v1/capsules/${id}/exec/stream`, {
        headers: { "x-api-key": keys.red },
      });
      await within("the socket opens", once(socket, "open"));
      return { socket, closed: once(socket, "close") };
    };
    const [direct, passedOn] = [await opened(ports[0]), await opened(ports[1])];
    const stopped = d.app.close();
    const [code, reason] = await within("the passed-on socket closes", passedOn.closed);
    assert.deepEqual([code, String(reason)], [1001, "the server is stopping"]);
    await stopped;
    assert.equal(direct.socket.readyState, WebSocket.OPEN);
    const ended = c.app.close();
    const [ofHolder, why] = await within("the direct socket closes", direct.closed);
    assert.deepEqual([ofHolder, String(why)], [code, String(reason)]);
    await ended;
  });

  test("a ticket is good once, for its path, at any host", async () => {
    const id = await a.capsule();
    const path = `/v1/capsules/${id}/exec/stream`;
    const issued = async (port: number) => {
      const body = JSON.stringify({ path });
      return JSON.parse((await ask(port, "/v1/ws-tickets", { method: "POST", headers: json, body })).body).ticket;
    };
    const statusAt = async (port: number, target: string, ticket: string) => {
      const socket = new WebSocket(`ws://127.0.0.1:${port}${target}?ticket=${ticket}`).on("error", () => {});
      const opened = once(socket, "open").then(() => 101);
      const refused = once(socket, "unexpected-response").then(([, { statusCode }]) => statusCode as number);
      const status = await within("the handshake", Promise.race([opened, refused]));
      socket.terminate();
      return status;
    };
    for (const [maker, user] of [
      [portA, portB],
      [portB, portA],
      [portB, portB],
      [portA, portA],
    ] as const) {
      const ticket = await issued(maker);
      assert.equal(await statusAt(user, path.replace("exec/stream", "pty"), ticket), 401);
      const altered = ticket.replace(/(?<=\.)./, (first: string) => (first === "A" ? "B" : "A"));
      assert.equal(await statusAt(user, path, altered), 401);
      assert.equal(await statusAt(user, path, ticket), 101);
      for (const port of [portA, portB]) assert.equal(await statusAt(port, path, ticket), 401);
    }
  });

  test("a refused upgrade is the holder's answer", async () => {
    const id = await a.capsule("paused");
    const refusal = async (port: number) => {
      const socket = new WebSocket(`ws://127.0.0.1:${port}/v1/capsules/${id}/pty`, {
        headers: { "x-api-key": keys.red },
      });
      socket.on("error", () => {});
      const [, answer] = (await within("a refusal", once(socket, "unexpected-response"))) as [unknown, IncomingMessage];
      return comparable({
        ...{ status: answer.statusCode as number, rawHeaders: answer.rawHeaders },
        body: await collected(answer),
      });
    };
    assert.deepEqual(await refusal(portB), await refusal(portA));
  });
});

describe("a host that does not hold what it is asked for", () => {
  test("says so; the map is asked once more, and the request goes there", async () => {
    const id = await b.capsule();
    onA.holders.stale.set(id, "b");
    assert.equal((await ask(portA, `/v1/capsules/${id}`)).status, 200);
    const other = await a.capsule();
    onA.holders.stale.clear();
    // The map of b has a capsule at itself that a holds: b is asked, by itself, never.
    onB.holders.stale.set(other, "a");
    assert.equal((await ask(portB, `/v1/capsules/${other}`)).status, 200);
  });

  test("twice is 503, with the host's name and Retry-After", async () => {
    const id = `cl-${"y".repeat(25)}`;
    onB.holders.stale.set(id, "a");
    const forget = onB.holders.forget;
    onB.holders.forget = () => {};
    const answer = await ask(portB, `/v1/capsules/${id}/exec`, {
      method: "POST",
      headers: json,
      body: '{"cmd":"echo"}',
    });
    onB.holders.forget = forget;
    onB.holders.stale.clear();
    assert.equal(answer.status, 503);
    assert.deepEqual(JSON.parse(answer.body).error.details, { host: "a" });
    assert.ok(answer.rawHeaders.some((name) => name.toLowerCase() === "retry-after"));
  });
});

describe("a client without a key", () => {
  test("is told no host's name", async (t) => {
    const id = await a.capsule();
    t.mock.method(onB.links, "probe", async () => false);
    cluster.expired.add("a");
    for (const [path, headers] of [
      ["/", { host: `80-${id}.localhost` }],
      [`/v1/capsules/${id}/files/signed?path=x`, {}],
    ] as [string, Record<string, string>][]) {
      const { status, body } = await ask(portB, path, { key: null, headers });
      assert.deepEqual([status, JSON.parse(body).error.details], [503, undefined], body);
      assert.doesNotMatch(body, /host a\b/);
    }
    cluster.expired.delete("a");
  });

  test("makes as many lookups as it may send requests to open routes", async (t) => {
    const own = new FakeCluster();
    const { forwarder, holders } = own.join("c", () => c.service.store);
    const c: Api = new Api({ open_requests_per_sec: 1 }, { forwarding: forwarder });
    t.after(() => c.app.close());
    const port = await listening(c);
    const unknown = { key: null, headers: { host: `80-cl-${"z".repeat(25)}.localhost` } };
    let status = 0;
    for (let asked = 0; holders.statements === asked && asked < 200; asked++)
      status = (await ask(port, "/", unknown)).status;
    assert.equal(status, 429);
    assert.ok(holders.statements < 200);
  });
});

describe("a host that stops", () => {
  const hosts = async () => {
    const own = new FakeCluster();
    const [onC, onD] = [own.join("c", () => c.service.store), own.join("d", () => d.service.store)];
    const c: Api = new Api({}, { forwarding: onC.forwarder });
    const d: Api = new Api({}, { forwarding: onD.forwarder });
    const ports = [await listening(c), await listening(d)] as const;
    await Promise.all([onC.open(), onD.open()]);
    return { c, d, ports };
  };

  test("has ended when requests that came from another host are answered", async () => {
    const { c, d, ports } = await hosts();
    const id = await c.capsule();
    const agent = c.agent(id);
    const asked = ask(ports[1], `/v1/capsules/${id}/exec`, { method: "POST", headers: json, body: '{"cmd":"hang"}' });
    await waitFor("the command runs", () => agent.runs.length === 1);
    const closed = once(c.app.server, "close");
    let hasEnded = false;
    const ended = c.app.close().then(() => {
      hasEnded = true;
    });
    await closed; // its own port
    for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
    assert.equal(hasEnded, false);
    agent.runs[0]!.exit(0);
    assert.equal((await asked).status, 200);
    await ended;
    await d.app.close();
  });

  test("says so in the answers to its own clients, whose connections would idle", async () => {
    const { c, d, ports } = await hosts();
    const id = await c.capsule();
    const agent = c.agent(id);
    const options = { method: "POST", headers: json, body: '{"cmd":"hang"}', agent: kept };
    const asked = ports.map((port) => ask(port, `/v1/capsules/${id}/exec`, options));
    await waitFor("both commands run", () => agent.runs.length === 2);
    const ended = [c.app.close(), d.app.close()];
    await waitFor("both ports to be closed", () => !c.app.server.listening && !d.app.server.listening);
    for (const run of agent.runs) run.exit(0);
    for (const { status, rawHeaders } of await Promise.all(asked)) {
      assert.equal(status, 200);
      assert.match(rawHeaders.join(" "), /connection close/i);
    }
    await Promise.all(ended);
  });
});

describe("a host that takes no connection", () => {
  const hosts = async () => {
    const own = new FakeCluster();
    const onE = own.join("e", () => e.service.store);
    const onF = own.join("f", () => f.service.store, { times: { retryMs: 1, absentMs: 60_000 } });
    const e: Api = new Api({}, { forwarding: onE.forwarder });
    const f: Api = new Api({}, { forwarding: onF.forwarder });
    const port = await listening(f);
    await Promise.all([e.app.ready(), onE.open(), onF.open()]);
    const way = await TcpLink.to(own.ports.get("e") as number);
    own.ports.set("e", way.port);
    await way.refuse();
    return {
      ...{ own, onF, way, id: await e.capsule() },
      ask: (path: string, asked?: Asked) => ask(port, path, asked),
      async [Symbol.asyncDispose]() {
        await Promise.all([e.app.close(), f.app.close()]);
        await way[Symbol.asyncDispose]();
      },
    };
  };

  test("is tried for longer while it says that it is being stopped or started", async () => {
    await using world = await hosts();
    const { own, onF, way, id } = world;
    const exec = () => world.ask(`/v1/capsules/${id}/exec`, { method: "POST", headers: json, body: '{"cmd":"echo"}' });
    const refused = await exec();
    assert.deepEqual([refused.status, JSON.parse(refused.body).error.details], [503, { host: "e" }]);
    own.absent.add("e");
    const asked = exec();
    const before = onF.holders.addressesAsked;
    await waitFor("some attempts were refused", () => onF.holders.addressesAsked > before + 3);
    await way.open();
    assert.equal((await asked).status, 200);
  });

  test("is tried once more where it was absent when the last attempt began", async () => {
    await using world = await hosts();
    const { own, onF, id } = world;
    const take = onF.links.take.bind(onF.links);
    let attempts = 0;
    onF.links.take = (...of) => {
      attempts++;
      own.absent.delete("e"); // it serves from now on
      return take(...of);
    };
    own.absent.add("e");
    assert.equal((await world.ask(`/v1/capsules/${id}`)).status, 503);
    assert.equal(attempts, 2);
  });

  test("is not tried once it counts as expired", async () => {
    await using world = await hosts();
    const { own, onF, id } = world;
    own.absent.add("e");
    const asked = world.ask(`/v1/capsules/${id}`);
    const before = onF.holders.addressesAsked;
    await waitFor("an attempt was refused", () => onF.holders.addressesAsked > before + 1);
    own.expired.add("e");
    assert.equal((await asked).status, 503);
  });
});

describe("a link that fails", () => {
  test("refused connections are tried again", async () => {
    const id = await a.capsule();
    await link.refuse();
    const asked = ask(portB, `/v1/capsules/${id}/exec`, { method: "POST", headers: json, body: '{"cmd":"echo"}' });
    const before = onB.holders.addressesAsked;
    await waitFor("an attempt was refused", () => onB.holders.addressesAsked > before + 1);
    await link.open();
    assert.equal((await asked).status, 200);
  });

  test("a connection that the holder has ended is not used again", async () => {
    const id = await a.capsule();
    assert.equal((await ask(portB, `/v1/capsules/${id}`, { agent: kept })).status, 200);
    const before = link.connections;
    link.end();
    await waitFor("the idle connection is closed", () => onB.links.idle("a") === 0);
    assert.equal((await ask(portB, `/v1/capsules/${id}/pause`, { method: "POST", agent: kept })).status, 200);
    assert.equal(link.connections, before + 1);
  });

  test("a command whose connection is reset is given up: its client's connection ends, and it ran once", async () => {
    const id = await a.capsule();
    const agent = a.agent(id);
    const before = agent.runs.length;
    const asked = ask(portB, `/v1/capsules/${id}/exec`, { method: "POST", headers: json, body: '{"cmd":"hang"}' });
    asked.catch(() => {});
    await waitFor("the command runs", () => agent.runs.length > before);
    link.cut();
    await assert.rejects(asked, /socket hang up|ECONNRESET/);
    assert.equal(agent.runs.length, before + 1);
  });
});
