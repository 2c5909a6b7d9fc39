/** Requests at ports' URLs, as bytes, with servers in fake guests. */
import assert from "node:assert/strict";
import type { Duplex } from "node:stream";
import { after, before, beforeEach, describe, test } from "node:test";
import { Api, keys } from "../../../test/api.ts";
import { bytesOf, GuestServer, ok, PortUrls, parsed } from "../../../test/port-urls.ts";
import { waitFor, within } from "../../../test/wait-for.ts";
import { parseProxies } from "../../network/proxies.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { answerHeadMs } from "./port-visit.ts";

const api = new Api({ port_connections_max: 3, public_wakes_per_hour: 2 });
const urls = new PortUrls(api);
let id = "";

before(() => urls.listen());
after(() => urls.close());
beforeEach(async () => {
  id = await api.capsule();
});

const host = (port = 80, of = id) => `${port}-${of}.localhost`;
const ask = async (target = "/", headers: string[] = [], key: string | null = keys.red, at = host()) =>
  parsed(await urls.exchange(bytesOf(at, target, headers, key)));

describe("a request", () => {
  test("reaches the guest byte for byte and in order, without credentials and hop-by-hop headers", async () => {
    const server = GuestServer.answering(api, id, 80, ok);
    const headers = [
      "X-B: 2",
      "x-A:  é  1",
      "X-B: 1",
      "Accept-Encoding: br",
      "Cookie: a=1; capsule_token=x",
      "X-Capsule-Token: y",
    ];
    const answer = await ask("//a/%2e%2E/?q=%zz&capsule_token=x&+#f", [
      ...headers,
      "Keep-Alive: 5",
      "X-Forwarded-For: 1.1.1.1",
    ]);
    assert.deepEqual([answer.status, answer.body], [200, "ok"]);
    assert.equal(
      server.heard[0],
      [
        ...[
          "GET //a/%2e%2E/?q=%zz&+#f HTTP/1.1",
          `Host: ${host()}`,
          "X-B: 2",
          "x-A: é  1",
          "X-B: 1",
          "Accept-Encoding: br",
        ],
        ...["Cookie: a=1", "X-Forwarded-For: 127.0.0.1", `X-Forwarded-Host: ${host()}`, "X-Forwarded-Proto: http"],
        ...["Connection: close", "", ""],
      ].join("\r\n"),
    );
  });

  test("keeps the X-Forwarded-For of a trusted proxy alone", async (t) => {
    for (const [proxies, expected] of [
      ["127.0.0.1", "X-Forwarded-For: 1.1.1.1, 127.0.0.1"],
      ["127.0.0.2", "X-Forwarded-For: 127.0.0.1"],
    ] as const) {
      const other = new Api({}, { proxies: parseProxies(proxies) });
      const at = new PortUrls(other);
      await at.listen();
      t.after(() => at.close());
      const of = await other.capsule();
      const server = GuestServer.answering(other, of, 80, ok);
      await at.exchange(bytesOf(host(80, of), "/", ["X-Forwarded-For: 1.1.1.1"], keys.red));
      assert.equal(
        server.heard[0]!.split("\r\n").find((line) => line.startsWith("X-Forwarded-For")),
        expected,
      );
    }
  });

  test("has its body passed on as it was framed, with any method and its trailers", async () => {
    const server = new GuestServer(api, id, 80, (connection, text) => {
      if (/\r\n\r\nhello$|\r\n0\r\n(.+\r\n)*\r\n$/.test(text)) connection.end(ok);
    });
    const head = (line: string, ...headers: string[]) =>
      [line, `Host: ${host()}`, "Connection: close", `X-API-Key: ${keys.red}`, ...headers, "", ""].join("\r\n");
    assert.equal(parsed(await urls.exchange(`${head("POST / HTTP/1.1", "Content-Length: 5")}hello`)).status, 200);
    const trailers = "X-Sum: 1\r\nCookie: c\r\n";
    const chunks = `3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\n${trailers}\r\n`;
    const chunked = head("PROPFIND /p HTTP/1.1", "Transfer-Encoding: chunked", "Trailer: X-Sum");
    assert.equal(parsed(await urls.exchange(chunked + chunks)).status, 200);
    const [first = "", second = ""] = server.heard;
    assert.match(first, /^POST \/ HTTP\/1\.1\r\nHost: .*\r\nContent-Length: 5\r\nX-Forwarded/);
    assert.match(second, /^PROPFIND \/p HTTP\/1\.1\r\nHost: .*\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n/);
    const [, body = ""] = second.split(/\r\n\r\n(.*)/s);
    assert.match(body, /^(?:3\r\nabc\r\n2\r\nde|5\r\nabcde)\r\n0\r\nX-Sum: 1\r\n\r\n$/);
  });

  test("without a body gets none, whatever its method", async () => {
    const server = GuestServer.answering(api, id, 80, ok);
    const head = ["POST / HTTP/1.1", `Host: ${host()}`, "Connection: close", `X-API-Key: ${keys.red}`, "", ""];
    assert.equal(parsed(await urls.exchange(head.join("\r\n"))).status, 200);
    assert.doesNotMatch(server.heard[0] as string, /transfer-encoding|content-length/i);
  });

  test("passes Authorization on, unless it holds a valid key of this service", async () => {
    const server = GuestServer.answering(api, id, 80, ok);
    const mine = `Basic ${btoa(`x:${keys.blue}`)}`;
    for (const value of ["Bearer guest", `Bearer capk_${"9".repeat(48)}`, `Bearer ${keys.blue}`, mine])
      assert.equal((await ask("/", [`Authorization: ${value}`])).status, 200);
    const seen = server.heard.map((text) => /^Authorization: (.*)$/m.exec(text)?.[1]?.trim());
    assert.deepEqual(seen, ["Bearer guest", `Bearer capk_${"9".repeat(48)}`, undefined, undefined]);
    assert.equal((await ask("/", [`Authorization: Bearer ${keys.red}`], null)).status, 401, "it opens nothing");
  });

  test("shows the server the Host that the capsule asks for", async () => {
    const server = GuestServer.answering(api, id, 80, ok);
    urls.setNetwork(id, { hostHeader: "localhost:{port}" });
    await ask();
    assert.match(server.heard[0] as string, /\r\nHost: localhost:80\r\n(.*\r\n)*X-Forwarded-Host: 80-cl-/);
  });

  test("may wait with its body for the guest's 100", async () => {
    const server = new GuestServer(api, id, 80, (connection, text) => {
      if (text.endsWith("\r\n\r\n")) connection.write("HTTP/1.1 100 Continue\r\n\r\n");
      else if (text.endsWith("hello")) connection.end(ok);
    });
    const socket = await urls.connection();
    socket.write(bytesOf(host(), "/", ["Expect: 100-continue", "Content-Length: 5"]).replace("GET", "PUT"));
    assert.match(await urls.received(socket, (text) => text.includes("\r\n\r\n")), /^HTTP\/1\.1 100 Continue\r\n\r\n$/);
    socket.write("hello");
    assert.equal(parsed(await urls.received(socket, (text) => text.endsWith("ok"))).status, 200);
    assert.match(server.heard[0] as string, /^Expect: 100-continue\r$/m);
  });
});

describe("an answer", () => {
  const from = async (answer: string, head = bytesOf(host(), "/")) => {
    GuestServer.answering(api, id, 80, answer);
    return await urls.exchange(head);
  };

  test("reaches the client byte for byte and in order, without hop-by-hop headers", async () => {
    const text = await from(
      "HTTP/1.1 201 Very made\r\nx-B: 1\r\nSet-Cookie: a\r\nset-cookie: b\r\nAlt-Svc: h3\r\nConnection: x-hop\r\nX-Hop: 1\r\nContent-Length: 3\r\nX: é\r\n\r\nabc",
    );
    const expected =
      "HTTP/1.1 201 Very made\r\nx-B: 1\r\nSet-Cookie: a\r\nset-cookie: b\r\nContent-Length: 3\r\nX: é\r\n";
    assert.equal(text, `${expected}Connection: close\r\n\r\nabc`);
  });

  test("is framed anew, with its trailers; one until the end of the connection too", async () => {
    const chunked = await from(
      "HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n0\r\nX-Sum: 1\r\n\r\n",
    );
    assert.match(
      chunked,
      /\r\nTrailer: X-Sum\r\n(.*\r\n)*Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n$/,
    );
    assert.match(await from("HTTP/1.0 200 OK\r\n\r\nabc"), /Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n$/);
    const old = [`GET / HTTP/1.0`, `Host: ${host()}`, `X-API-Key: ${keys.red}`, "", ""].join("\r\n");
    assert.match(await from("HTTP/1.0 200 OK\r\n\r\nabc", old), /^HTTP\/1\.1 200 OK\r\nConnection: close\r\n\r\nabc$/);
  });

  test("to HEAD, of 204 and of 304 has no body", async () => {
    const head = bytesOf(host(), "/").replace("GET", "HEAD");
    assert.match(
      await from("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", head),
      /Content-Length: 9\r\n(.*\r\n)*\r\n$/,
    );
    assert.match(
      await from("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"),
      /^HTTP\/1\.1 204 No Content\r\nConnection: close\r\n\r\n$/,
    );
    assert.match(
      await from("HTTP/1.1 304 Not Modified\r\nETag: a\r\n\r\n"),
      /^HTTP\/1\.1 304 Not Modified\r\nETag: a\r\n(.*\r\n)*\r\n$/,
    );
  });

  test("is passed on while it comes, and provisional ones too", async () => {
    let connection: Duplex | undefined;
    new GuestServer(api, id, 80, (opened) => {
      connection = opened;
      opened.write(
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
      );
    });
    const socket = await urls.connection();
    socket.write(bytesOf(host(), "/"));
    const head = await urls.received(socket, (text) => text.includes("event-stream\r\n"));
    assert.match(head, /^HTTP\/1\.1 103 Early Hints\r\nLink: <\/a>\r\n\r\nHTTP\/1\.1 200 OK\r\n/);
    for (const event of ["one", "two"]) {
      connection?.write(`data: ${event}\n\n`);
      await urls.received(socket, (text) => text.includes(event));
    }
    socket.destroy();
    await waitFor("the server sees the client go", () => connection?.destroyed === true);
  });

  test("that breaks off is not taken for a whole one", async () => {
    new GuestServer(api, id, 80, (connection) => {
      connection.write("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc");
      setImmediate(() => connection.destroy());
    });
    const socket = await urls.connection();
    socket.write(bytesOf(host(), "/").replace("Connection: close", "Connection: keep-alive"));
    await waitFor("the connection ends", () => socket.resume().readableEnded || socket.destroyed);
  });

  test("keeps the client's connection for the next request", async () => {
    const server = GuestServer.answering(api, id, 80, ok);
    const socket = await urls.connection();
    const kept = bytesOf(host(), "/").replace("Connection: close\r\n", "");
    for (let round = 0; round < 2; round++) {
      socket.write(kept);
      assert.match(
        await urls.received(socket, (text) => text.endsWith("ok")),
        /\r\nConnection: keep-alive\r\nKeep-Alive: /,
      );
    }
    socket.write(kept + kept + bytesOf("localhost", "/healthz"));
    const text = await urls.received(socket, (received) => received.includes('"ready":'));
    assert.equal(text.match(/HTTP\/1\.1 200/g)?.length, 3, "also pipelined, and to the API behind it");
    assert.equal(server.connections.length, 4, "each dials anew");
  });

  const odd = {
    "no HTTP": "SSH-2.0-x\r\n",
    "nothing at all": "",
    "two lengths": "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length beside chunks":
      "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "an unknown coding": "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nab",
    "a folded line": "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
    "an upgrade that nobody asked for": "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
    "a status below 100": "HTTP/1.1 099 x\r\nContent-Length: 0\r\n\r\n",
    "a control character": "HTTP/1.1 200 a\u0001b\r\nContent-Length: 0\r\n\r\n",
    "a head of 70 KB": `HTTP/1.1 200 OK\r\n${"A: ".padEnd(1_000, "x")}\r\n`.padEnd(
      70_000,
      `${"A: ".padEnd(1_000, "x")}\r\n`,
    ),
    "provisional answers of 70 KB": `HTTP/1.1 103 x\r\nA: ${"x".repeat(1_000)}\r\n\r\n`.repeat(70),
  };
  for (const [what, answer] of Object.entries(odd)) {
    test(`with ${what} is 502`, async () => {
      const text = await from(answer);
      const { status, error } = parsed(text.slice(text.lastIndexOf("HTTP/1.1 5")));
      assert.deepEqual([status, error.code], [502, "agent_error"]);
    });
  }

  test("that does not begin in 10 minutes is 504, and one that has begun has no limit", async (t) => {
    const begun = t.mock.method(globalThis, "setTimeout");
    const ended = t.mock.method(globalThis, "clearTimeout");
    const deadline = () => begun.mock.calls.findLast((call) => call.arguments[1] === answerHeadMs)!;
    const silent = new GuestServer(api, id, 80, () => {});
    const asked = ask();
    await waitFor("the request has come", () => silent.heard[0]?.endsWith("\r\n\r\n") === true);
    (deadline().arguments[0] as () => void)();
    const { status, error } = await asked;
    assert.deepEqual([status, error.code], [504, "timeout"]);
    new GuestServer(api, id, 80, (connection) => void connection.write("HTTP/1.1 200 OK\r\n\r\nfirst"));
    const socket = await urls.connection();
    socket.write(bytesOf(host(), "/"));
    await urls.received(socket, (text) => text.includes("first"));
    assert.ok(ended.mock.calls.some((call) => call.arguments[0] === deadline().result));
    socket.destroy();
  });

  test("with a head of 70 KB that comes in single bytes is 502", async () => {
    new GuestServer(api, id, 80, (connection) => {
      connection.write("HTTP/1.1 200 OK\r\nA: ");
      for (let sent = 0; sent < 70_000 && !connection.destroyed; sent++) connection.write("x");
    });
    assert.equal((await ask()).error.code, "agent_error");
  });
});

describe("who may", () => {
  test("the same bytes refuse a request without a good credential, whether or not the capsule exists", async () => {
    GuestServer.answering(api, id, 80, ok);
    const refusal = async (of: string, headers: string[], key: string | null) =>
      (await urls.exchange(bytesOf(host(80, of), "/a", headers, key))).replace(/\r\nDate: .*/, "");
    const expected = await refusal("cl-none", [], null);
    assert.match(expected, /^HTTP\/1\.1 401 Unauthorized\r\n/);
    const none = urls.token(id, 81);
    for (const headers of [[], [`X-Capsule-Token: ${none}`], [`Cookie: capsule_token=${none}`]]) {
      assert.equal(await refusal(id, headers, null), expected);
      assert.equal(await refusal(id, headers, "capk_none"), expected);
      assert.equal(await refusal("cl-none", headers, "capk_none"), expected);
    }
    assert.equal((await ask(`/?capsule_token=${none}`, [], null)).status, 401);
  });

  test("another team's key is told the same of this capsule as of none", async () => {
    const of = async (some: string) => (await ask("/", [], keys.blue, host(80, some))).error;
    assert.deepEqual([(await of(id)).code, (await of("cl-none")).code], ["not_found", "not_found"]);
    assert.equal((await of(id)).message.replace(id, ""), (await of("cl-none")).message.replace("cl-none", ""));
  });

  test("the best of what is sent counts, and a public port asks for nothing", async () => {
    const server = GuestServer.answering(api, id, 80, ok);
    const token = urls.token(id, 80);
    assert.equal((await ask("/", [`X-Capsule-Token: bad`, `Cookie: capsule_token=${token}`], keys.blue)).status, 200);
    assert.equal((await ask("/", ["X-Capsule-Token: bad", "X-API-Key: capk_none"])).status, 200);
    const tossed = Array.from({ length: 100 }, () => "capsule_token=bad").join("; ");
    assert.equal((await ask("/", [`Cookie: ${tossed}; capsule_token=${token}`], null)).status, 200);
    urls.setNetwork(id, { publicPorts: [80] });
    for (const key of [null, "capk_none", keys.blue])
      assert.equal((await ask("/?capsule_token=bad", ["X-Capsule-Token: bad"], key)).status, 200);
    for (const heard of server.heard) assert.doesNotMatch(heard, /capk_|token/i);
    assert.equal((await ask("/", [], null, host(81))).status, 401);
  });

  test("a link becomes a cookie, and the cookie opens this port alone", async () => {
    const server = GuestServer.answering(api, id, 80, ok);
    const token = urls.token(id, 80, 3_600_000);
    const { status, headers } = await ask(
      `//evil.org/?a=1&capsule_token=${token}&b`,
      [],
      null,
      `${host()}:${urls.port}`,
    );
    assert.equal(status, 303);
    assert.ok(headers.includes(`Location: http://${host()}:${urls.port}//evil.org/?a=1&b`), headers.join("\n"));
    assert.ok(headers.includes("Cache-Control: no-store"));
    assert.ok(
      headers.includes(`Set-Cookie: capsule_token=${token}; Max-Age=3600; Path=/; HttpOnly; SameSite=Lax`),
      headers.join("\n"),
    );
    assert.equal(server.connections.length, 0);
    const cookie = [`Cookie: capsule_token=${token}`];
    assert.equal((await ask("/", cookie, null)).status, 200);
    assert.equal((await ask("/", cookie, null, host(81))).status, 401);
    assert.equal((await ask("/", cookie, null, host(80, await api.capsule()))).status, 401);
    const posted = bytesOf(host(), `/?capsule_token=${token}`, ["Content-Length: 0"], null).replace("GET", "POST");
    assert.equal(parsed(await urls.exchange(posted)).status, 200, "another method is served directly");
    const looked = bytesOf(host(), `/a?capsule_token=${token}`, [], null).replace("GET", "HEAD");
    assert.equal(parsed(await urls.exchange(looked)).status, 200);
    assert.match(server.heard.at(-1)!, /^HEAD \/a HTTP/);
    const odd = parsed(await urls.exchange(bytesOf(host(), `*.evil.org/?capsule_token=${token}`, [], null)));
    assert.equal(odd.status, 200, "no target is joined to the host but a path");
    const past = urls.token(id, 80, -1);
    assert.equal((await ask(`/?capsule_token=${past}`, [], null)).status, 401);
  });

  test("a link leads to scheme and port of the setting, or of the proxy in front", async (t) => {
    const location = async (options: ConstructorParameters<typeof Api>[1], domain: string, more: string[]) => {
      const other = new Api({}, options);
      const at = new PortUrls(other);
      await at.listen();
      t.after(() => at.close());
      const of = await other.capsule();
      const target = `/a?capsule_token=${at.token(of, 80)}&b`;
      const { status, headers } = parsed(await at.exchange(bytesOf(`80-${of}.${domain}`, target, more, null)));
      assert.equal(status, 303);
      const [location, cookie] = ["Location: ", "Set-Cookie: "].map((name) =>
        headers.find((each) => each.startsWith(name)),
      );
      return [location?.replace(of, "cl-x"), / (Secure; .*|SameSite=.*)$/.exec(cookie ?? "")?.[1]];
    };
    const secure = "Secure; SameSite=None; Partitioned";
    const set = { portDomain: { host: "apps.example", scheme: "https", port: 8_443 } } as const;
    const apps = await location(set, "apps.example", ["X-Forwarded-Proto: http"]);
    assert.deepEqual(apps, ["Location: https://80-cl-x.apps.example:8443/a?b", secure]);
    const proto = ["X-Forwarded-Proto: https"];
    const proxied = await location({ proxies: parseProxies("loopback") }, "localhost", proto);
    assert.deepEqual(proxied, ["Location: https://80-cl-x.localhost/a?b", secure]);
    const listed = await location({ proxies: parseProxies("127.0.0.1") }, "localhost", proto);
    assert.deepEqual(listed, proxied);
    const elsewhere = await location({ proxies: parseProxies("127.0.0.2") }, "localhost", proto);
    assert.deepEqual(elsewhere[0], "Location: http://80-cl-x.localhost/a?b");
    assert.deepEqual(await location({}, "localhost", proto), [
      "Location: http://80-cl-x.localhost/a?b",
      "SameSite=Lax",
    ]);
  });

  test("a pair of requests with bad keys counts as guesses, and Authorization never does", async (t) => {
    const strict = new Api({ refused_keys_per_sec: 1 });
    const at = new PortUrls(strict);
    await at.listen();
    t.after(() => at.close());
    const open = await strict.capsule();
    at.setNetwork(open, { publicPorts: [80] });
    GuestServer.answering(strict, open, 80, ok);
    for (let round = 0; round < 25; round++)
      assert.equal(
        parsed(await at.exchange(bytesOf(host(80, open), "/", ["Authorization: Bearer x"], "capk_bad"))).status,
        200,
      );
    const guess = async () =>
      parsed(await at.exchange(bytesOf(host(80, "cl-none"), "/", ["X-API-Key: capk_x"], null))).status;
    assert.equal(await guess(), 401);
    let status = 401;
    for (let round = 0; round < 500 && status === 401; round++) status = await guess();
    assert.equal(status, 429);
  });
});

describe("an end of what opened a port", () => {
  const streaming = async (headers: string[], key: string | null = null) => {
    const server = new GuestServer(api, id, 80, (connection) => void connection.write("HTTP/1.1 200 OK\r\n\r\nfirst"));
    const socket = await urls.connection();
    socket.write(bytesOf(host(), "/", headers, key));
    await urls.received(socket, (text) => text.includes("first"));
    return { socket, isOver: () => socket.resume().readableEnded || socket.destroyed, server };
  };

  test("deleted tokens close what they opened, and leave what a key opened", async () => {
    const byToken = await streaming([`X-Capsule-Token: ${urls.token(id, 80)}`]);
    const byKey = await streaming([`X-Capsule-Token: ${urls.token(id, 80)}`], keys.red);
    api.service.capsules.networks.renewSecret("team-red", id);
    await waitFor("the token's stream ends", byToken.isOver);
    await waitFor("the guest sees it", () => byToken.server.connections[0]?.destroyed === true);
    assert.equal(byKey.isOver(), false);
    byKey.socket.destroy();
  });

  test("a token that is deleted while its request waits opens nothing", async () => {
    const server = GuestServer.answering(api, id, 80, ok);
    const token = urls.token(id, 80);
    const { capsules } = api.service;
    const portAccess = capsules.portAccess.bind(capsules);
    capsules.portAccess = (of) => {
      const access = portAccess(of);
      capsules.portAccess = portAccess;
      capsules.networks.renewSecret("team-red", id);
      return access;
    };
    assert.equal((await ask("/", [`X-Capsule-Token: ${token}`], null)).status, 401);
    assert.equal(server.connections.length, 0);
  });

  test("a port that is public no more closes what nothing else opened", async () => {
    urls.setNetwork(id, { publicPorts: [80] });
    const open = await streaming([]);
    urls.setNetwork(id, { publicPorts: [80, 81] });
    assert.equal(open.isOver(), false);
    urls.setNetwork(id, { publicPorts: [81] });
    await waitFor("the stream ends", open.isOver);
  });

  test("a pause breaks an answer off", async () => {
    const paused = await streaming([], keys.red);
    await api.become(id, "paused");
    await waitFor("the stream ends", paused.isOver);
  });
});

describe("a refusal", () => {
  test("has its code: no port, no server, not running, too many", async () => {
    assert.equal((await ask("/healthz", [], keys.red, "api.localhost")).error.code, "not_found");
    api.agent(id).servers.set(3_000, () => {});
    const closed = await ask();
    assert.deepEqual(
      [closed.status, closed.error.code, closed.error.details],
      [502, "port_closed", { ports: [3_000] }],
    );
    api.agent(id).servers.set(80, (connection) => connection.destroy());
    assert.deepEqual([(await ask()).status, (await ask()).error.code], [502, "agent_error"]);
    await api.become(id, "paused");
    assert.deepEqual([(await ask()).status, (await ask()).error.code], [409, "invalid_state"]);
  });

  test("tells a client without a key of no server but those that are public", async () => {
    urls.setNetwork(id, { publicPorts: [80, 3_000] });
    for (const each of [3_000, 5_432]) api.agent(id).servers.set(each, () => {});
    const listed = async (headers: string[], key: string | null) => (await ask("/", headers, key)).error.details.ports;
    assert.deepEqual(await listed([], null), [3_000]);
    assert.deepEqual(await listed([`X-Capsule-Token: ${urls.token(id, 80)}`], null), [3_000]);
    assert.deepEqual(await listed([], keys.red), [3_000, 5_432]);
    assert.doesNotMatch((await ask("/", ["Accept: text/html"], null)).body, /5432/);
  });

  test("is a page where Accept names one, and shows no more than the JSON", async () => {
    api.agent(id).servers.set(3_000, () => {});
    const { status, headers, body } = await ask("/<b>", ["Accept: text/html,*/*;q=0.8"]);
    assert.equal(status, 502);
    assert.ok(headers.includes("Content-Type: text/html; charset=utf-8"), headers.join("\n"));
    assert.match(body, /^<!doctype html>.*nothing listens on port 80.*3000/s);
    assert.doesNotMatch(body, /<b>/);
    assert.equal((await ask("/", ["Accept: text/html;q=0, */*"])).error.code, "port_closed");
  });

  test("for too many connections comes before an upgrade, and each place is given back", async () => {
    const server = new GuestServer(api, id, 80, () => {});
    const open = [];
    for (let count = 0; count < 3; count++) {
      const socket = await urls.connection();
      socket.write(bytesOf(host(), "/"));
      await waitFor("it is dialled", () => server.connections.length === count + 1);
      open.push(socket);
    }
    const refused = await ask("/", ["Upgrade: x", "Connection: upgrade"]);
    assert.deepEqual([refused.status, refused.error.code], [429, "quota_exceeded"]);
    assert.ok(refused.headers.some((header) => /^retry-after: [0-9]+$/i.test(header)));
    for (const socket of open) socket.destroy();
    await waitFor("the server sees them go", () => server.connections.every(({ destroyed }) => destroyed));
    GuestServer.answering(api, id, 80, ok);
    assert.equal((await ask()).status, 200);
  });

  test("of a head that is too large is 431, as at the API", async () => {
    const long = `X-Long: ${"a".repeat(20_000)}`;
    for (const [target, headers] of [
      [`/${"a".repeat(20_000)}`, []],
      ["/", [long]],
    ] as const) {
      const { status, error } = await ask(target, [...headers]);
      assert.deepEqual([status, error.code], [431, "headers_too_large"]);
    }
  });

  test("leaves the connection usable, with the rest of a body read", async () => {
    const socket = await urls.connection();
    const body = "x".repeat(300_000);
    const head = bytesOf(host(), "/", [`Content-Length: ${body.length}`]).replace("Connection: close\r\n", "");
    socket.write(head.replace("GET", "POST") + body);
    const refusal = await urls.received(socket, (text) => text.includes("port_closed"));
    assert.match(refusal, /^HTTP\/1\.1 502 /);
  });

  test("of a host in doubt comes from no route", async () => {
    for (const hosts of [["localhost", host()], [host(), "localhost"], [], [host(), host()]]) {
      const lines = hosts.map((each) => `Host: ${each}`);
      const head = ["GET /healthz HTTP/1.1", ...lines, `X-API-Key: ${keys.red}`, "Connection: close", "", ""].join(
        "\r\n",
      );
      const { status, error } = parsed(await urls.exchange(head));
      assert.deepEqual([status, error.code], [400, "invalid_request"], hosts.join());
    }
    const other = bytesOf("localhost", `http://${host()}/`);
    assert.equal(parsed(await urls.exchange(other)).status, 400);
  });
});

describe("the walls of Host", () => {
  test("no route of the API answers below the domain, and no port outside of it", async () => {
    const server = GuestServer.answering(api, id, 80, ok);
    for (const path of ["/v1/limits", "/healthz", "/", "/docs", "/openapi.json", "/metrics"]) {
      assert.equal((await ask(path)).body, "ok", path);
      assert.equal((await ask(path, [], keys.red, "x.localhost")).status, 404, path);
    }
    const count = server.connections.length;
    for (const header of [`X-Forwarded-Host: ${host()}`, `Forwarded: host=${host()}`])
      assert.match((await ask("/v1/limits", [header], keys.red, "localhost")).body, /"port_connections_max"/);
    assert.equal(server.connections.length, count);
  });
});

describe("waking", () => {
  const paused = async (autoResume: boolean, publicPorts: number[] = []) => {
    api.service.capsules.update("team-red", id, { autoResume });
    urls.setNetwork(id, { publicPorts });
    await api.become(id, "paused");
  };
  const listenWhenRunning = () => api.agent(id).servers.set(80, (connection) => connection.end(ok));

  test("requests of a key and of a public port resume it, those without do not", async () => {
    await paused(true, [80]);
    assert.equal((await ask("/", [], null, host(81))).status, 401);
    assert.equal(api.service.store.get(id)?.status, "paused");
    assert.equal((await ask("/", [], null)).error.code, "port_closed");
    assert.equal(api.service.store.get(id)?.status, "running");
    listenWhenRunning();
    assert.equal((await ask("/", [], null)).status, 200);
  });

  test("a resume that finds no room is 503 with Retry-After, and the capsule stays paused", async (t) => {
    await paused(true);
    t.after(() => {
      api.service.host.before = () => {};
    });
    api.service.host.before = (verb) => {
      if (verb === "restore") throw new CapsuleError("no_capacity", "no memory is free", { retryAfterSec: 9 });
    };
    const { status, headers, error } = await ask();
    assert.deepEqual([status, error.code, headers.includes("Retry-After: 9")], [503, "no_capacity", true]);
    assert.equal(api.service.store.get(id)?.status, "paused");
  });

  test("a public port has so many wakes an hour, and a key has no bound", async () => {
    await paused(true, [80]);
    for (let round = 0; round < 2; round++) {
      assert.equal((await ask("/", [], null)).status, 502);
      await api.become(id, "paused");
    }
    const refused = await ask("/", [], null);
    assert.deepEqual([refused.status, refused.error.code], [429, "quota_exceeded"]);
    assert.ok(refused.headers.some((header) => /^retry-after: [0-9]{4}$/i.test(header)));
    assert.equal(api.service.store.get(id)?.status, "paused");
    assert.equal((await ask()).status, 502);
  });

  test("those that leave during one resume take one wake, with all that wait for it", async () => {
    await paused(true, [80]);
    api.service.host.isHanging = true;
    for (let round = 0; round < 3; round++) {
      const socket = await urls.connection();
      socket.write(bytesOf(host(), "/", [], null));
      await waitFor("it waits for the host", () => api.service.store.get(id)?.intent === "resume");
      await waitFor("it waits", () => api.service.autoResumes.waiting(id) === 1);
      socket.destroy();
      await waitFor("it waits no more", () => api.service.autoResumes.waiting(id) === 0);
    }
    const last = ask("/", [], null);
    await waitFor("the last waits", () => api.service.autoResumes.waiting(id) === 1);
    api.service.host.isHanging = false;
    api.service.host.stopHanging();
    assert.equal((await within("the answer", last)).status, 502);
  });

  test("a client that leaves while the capsule resumes gives its place back, and many share one resume", async () => {
    await paused(true);
    api.service.host.isHanging = true;
    const sockets = [await urls.connection(), await urls.connection(), await urls.connection()];
    for (const socket of sockets) socket.write(bytesOf(host(), "/"));
    await waitFor("they wait", () => api.service.autoResumes.waiting(id) === 3);
    for (const socket of sockets) socket.destroy();
    await waitFor("they wait no more", () => api.service.autoResumes.waiting(id) === 0);
    api.service.host.isHanging = false;
    api.service.host.stopHanging();
    await waitFor("it runs", () => api.service.store.get(id)?.status === "running");
    listenWhenRunning();
    assert.equal((await within("the answer", ask())).status, 200);
  });
});

describe("activity", () => {
  test("a request under way holds the idle timer off, and its beginning and end are activity", async () => {
    const server = new GuestServer(api, id, 80, () => {});
    assert.equal(api.isBusy(id), false);
    const socket = await urls.connection();
    socket.write(bytesOf(host(), "/"));
    await waitFor("it is under way", () => server.connections.length === 1 && api.isBusy(id));
    const began = api.lastActiveAt(id);
    api.service.clock.advance(10);
    server.connections[0]?.end(ok);
    await waitFor("it is over", () => !api.isBusy(id));
    assert.ok((api.lastActiveAt(id) as number) > (began as number));
  });
});
