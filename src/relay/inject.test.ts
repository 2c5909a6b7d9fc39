/** Requests that leave with a rule's headers, by what the guest gets and what an HTTPS server sees. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { after, describe, test } from "node:test";
import { TestAuthority } from "../../test/relay/certificates.ts";
import { EchoDialler } from "../../test/relay/echo-dialler.ts";
import { Relayed, type Zone } from "../../test/relay/relayed.ts";
import { ServerDialler, UpstreamServer } from "../../test/relay/upstream-server.ts";
import type { RelayPolicy } from "./messages.ts";

const zone: Zone = {
  "api.example": ["9.9.9.1"],
  "b.example": ["9.9.9.2"],
  "other.example": ["9.9.9.3"],
  "private.example": ["10.0.0.1"],
};
const secret = "Bearer s3cret-of-the-test";
const policy: Partial<RelayPolicy> = {
  egress: "public",
  inject: [
    { host: "api.example", headers: { Authorization: secret, "X-Empty": "" } },
    { host: "b.example", headers: { "X-Key": "of b" } },
  ],
};
const authority = new TestAuthority();
const apiKey = authority.sign("api.example");
after(() => authority[Symbol.dispose]());

async function world(given: Partial<RelayPolicy> = policy, key = apiKey, settings = {}) {
  const server = await new UpstreamServer(key).listen();
  const dialler = new ServerDialler(server.port);
  const relay = new Relayed(zone, { roots: [authority.certificate], ...settings }, dialler);
  const { peer, run } = await relay.attach(given);
  /** Sends bytes to port 80 of an address, and ends; all that comes back. */
  const ask = async (text: string, address = "9.9.9.1") => {
    const stream = await peer.connected(address, 80);
    stream.end(text);
    return await stream.text();
  };
  return {
    ...{ server, dialler, relay, peer, run, ask },
    async [Symbol.asyncDispose]() {
      await relay[Symbol.asyncDispose]();
      await server[Symbol.asyncDispose]();
    },
  };
}

const get = (host: string, more = "") =>
  `GET /v1/models?a=b HTTP/1.1\r\nHost: ${host}\r\n${more}Connection: close\r\n\r\n`;
const statusOf = (answer: string) => Number(/^HTTP\/1\.1 (\d+) /.exec(answer)?.[1]);

describe("a request to a rule's host", () => {
  test("leaves as HTTPS with the rule's headers in place of the guest's, and is answered in plain HTTP", async () => {
    await using at = await world();
    const answer = await at.ask(get("API.example:80", "authorization: mine\r\nX-Own: 1\r\nAUTHORIZATION: twice\r\n"));
    assert.equal(statusOf(answer), 200);
    assert.match(answer, /answer to 0 bytes$/);
    const [seen] = at.server.seen;
    assert.deepEqual([seen?.method, seen?.url], ["GET", "/v1/models?a=b"]);
    const sent = ["Host", "api.example", "X-Own", "1", "Authorization", secret, "X-Empty", ""];
    assert.deepEqual(seen?.raw, [...sent, "Connection", "close"]);
    assert.deepEqual(at.dialler.dialled, ["9.9.9.1:443"]);
    assert.deepEqual(at.relay.recent(at.run), ["allowed api.example 9.9.9.1 443"]);
    assert.doesNotMatch(answer, /s3cret/);
  });

  test("is resolved by the relay, whatever address the guest asked for", async () => {
    await using at = await world();
    assert.equal(statusOf(await at.ask(get("api.example"), "8.8.8.8")), 200);
    assert.deepEqual(at.dialler.dialled, ["9.9.9.1:443"]);
  });

  test("passes bodies by length and in chunks, and trailers without the rule's names", async () => {
    await using at = await world();
    at.server.answer = (_request, response, body) => {
      response.writeHead(200, { Trailer: "X-Sum" });
      response.write(body);
      response.addTrailers({ "X-Sum": "2" });
      response.end();
    };
    const head = "POST / HTTP/1.1\r\nHost: api.example\r\n";
    const sized = await at.ask(`${head}Content-Length: 5\r\n\r\nhello`);
    assert.match(sized, /\r\nhello\r\n0\r\nX-Sum: 2\r\n\r\n$/);
    const chunked = `${head}Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3\r\nabc\r\n0\r\n`;
    await at.ask(`${chunked}X-Sum: 1\r\nAuthorization: mine\r\n\r\n`);
    assert.deepEqual(
      at.server.seen.map(({ body }) => body),
      ["hello", "abc"],
    );
    assert.deepEqual(at.server.seen[1]?.trailers, ["X-Sum", "1"]);
    assert.equal(statusOf(await at.ask(`${head}\r\n`)), 200);
    assert.ok(at.server.seen[2]?.raw.join().includes("Content-Length,0"));
  });

  test("is kept alive for the guest, each request by its own host and rule", async () => {
    await using at = await world(policy, authority.sign("b.example"));
    const pipelined = "GET /1 HTTP/1.1\r\nHost: b.example\r\n\r\nGET /2 HTTP/1.1\r\nHost: B.example\r\n\r\n";
    const answer = await at.ask(pipelined);
    assert.equal(answer.match(/HTTP\/1\.1 200 OK/g)?.length, 2);
    assert.deepEqual(
      at.server.seen.map(({ url }) => url),
      ["/1", "/2"],
    );
  });

  test("waits for 100-continue of the server before its body", async () => {
    await using at = await world();
    const stream = await at.peer.connected("9.9.9.1", 80);
    stream.write(
      "POST / HTTP/1.1\r\nHost: api.example\r\nExpect: 100-continue\r\nContent-Length: 3\r\nConnection: close\r\n\r\n",
    );
    const [first] = (await new Promise((resolve) => stream.once("data", (chunk) => resolve([chunk])))) as [Buffer];
    assert.match(first.toString(), /^HTTP\/1\.1 100 Continue\r\n\r\n$/);
    stream.end("abc");
    assert.match(await stream.text(), /^HTTP\/1\.1 200 /);
    assert.equal(at.server.seen[0]?.body, "abc");
  });

  test("streams: what the server sends comes before its end, and a break is one to the guest", async () => {
    await using at = await world();
    const begun = Promise.withResolvers<() => void>();
    at.server.onHead = (request, response) => {
      response.writeHead(200, { "Content-Type": "text/event-stream" });
      response.write("data: 1\n\n");
      begun.resolve(() => request.socket.destroy());
    };
    const stream = await at.peer.connected("9.9.9.1", 80);
    stream.write(get("api.example"));
    let text = "";
    await new Promise<void>((resolve) => {
      stream.on("data", (chunk: Buffer) => {
        text += chunk.toString();
        if (text.includes("data: 1")) resolve();
      });
    });
    const closed = new Promise((resolve) => stream.once("close", resolve));
    (await begun.promise)();
    await closed;
    assert.equal(stream.errored?.message, "reset");
  });

  test("carries a megabyte each way", async () => {
    await using at = await world();
    const body = "0123456789abcdef".repeat(65_536);
    at.server.answer = (_request, response, given) => response.end(given);
    const answer = await at.ask(
      `PUT / HTTP/1.1\r\nHost: api.example\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`,
    );
    assert.equal(answer.slice(answer.indexOf("\r\n\r\n") + 4) === body, true);
  });

  test("a redirect and an upgrade of another protocol are not followed", async () => {
    await using at = await world();
    at.server.answer = (_request, response) => {
      response.writeHead(302, { Location: "https://other.example/" });
      response.end();
    };
    assert.match(await at.ask(get("api.example")), /\r\nLocation: https:\/\/other\.example\/\r\n/);
    assert.deepEqual(at.dialler.dialled, ["9.9.9.1:443"]);
    const upgrade = "GET / HTTP/1.1\r\nHost: api.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert.equal(statusOf(await at.ask(upgrade)), 501);
    assert.equal(at.dialler.dialled.length, 1);
  });
});

describe("a certificate", () => {
  const wrong: [what: string, key: () => ReturnType<TestAuthority["sign"]>, roots?: string[]][] = [
    ["of another host", () => authority.sign("other.example")],
    ["of an unknown authority", () => apiKey, []],
  ];
  for (const [what, key, roots = [authority.certificate]] of wrong) {
    test(`${what} gets no byte`, async () => {
      await using at = await world(policy, key(), { roots });
      assert.equal(statusOf(await at.ask(get("api.example"))), 502);
      assert.equal(at.server.bytes, 0);
      assert.deepEqual(at.relay.recent(at.run), ["failed certificate api.example 9.9.9.1 443"]);
    });
  }
});

describe("a server that cannot be asked", () => {
  const shown: [what: string, serve: (socket: Socket) => void, reason: string][] = [
    ["that ends at once", (socket) => socket.destroy(), "tls"],
    ["that speaks no TLS", (socket) => socket.end("HTTP/1.1 400 Bad Request\r\n\r\n"), "tls"],
  ];
  for (const [what, serve, reason] of shown) {
    test(`${what} is 502`, async () => {
      const heard: Buffer[] = [];
      const plain = createServer((socket) => {
        socket.on("error", () => {}).on("data", (chunk) => heard.push(chunk));
        serve(socket);
      });
      await once(plain.listen(0, "127.0.0.1"), "listening");
      const relay = new Relayed(zone, {}, new ServerDialler((plain.address() as AddressInfo).port));
      await using _ = relay;
      const { peer, run } = await relay.attach(policy);
      const stream = await peer.connected("9.9.9.1", 80);
      stream.end(get("api.example"));
      assert.equal(statusOf(await stream.text()), 502);
      plain.close();
      assert.deepEqual(relay.recent(run), [`failed ${reason} api.example 9.9.9.1 443`]);
      assert.equal(Buffer.concat(heard).includes(secret), false);
    });
  }

  test("that refuses, or that nobody is, is 502 with what became of the connection", async () => {
    for (const failure of ["refused", "unreachable", "timeout"] as const) {
      const dialler = new EchoDialler();
      dialler.failure = failure;
      await using relay = new Relayed(zone, {}, dialler);
      const { peer, run } = await relay.attach(policy);
      const stream = await peer.connected("9.9.9.1", 80);
      stream.end(get("api.example"));
      const answer = await stream.text();
      assert.match(answer, new RegExp(`^HTTP/1\\.1 502 .*${failure}`, "s"));
      assert.deepEqual(relay.recent(run), [`failed ${failure} api.example 9.9.9.1 443`]);
    }
  });
});

describe("what is refused", () => {
  test("a value that cannot be decrypted, alone", async () => {
    const inject = [{ host: "api.example", headers: { A: null } }, ...policy.inject!.slice(1)];
    await using at = await world({ egress: "public", inject }, authority.sign("b.example"));
    assert.match(await at.ask(get("api.example")), /^HTTP\/1\.1 502 .*secret\.key/s);
    assert.equal(statusOf(await at.ask(get("b.example"))), 200);
    assert.deepEqual(at.dialler.dialled, ["9.9.9.2:443"]);
  });

  const shut: [what: string, given: Partial<RelayPolicy>, host: string, status: number, noted: string][] = [
    ["an unlisted name", { egress: "allowlist", allow: ["other.example"] }, "api.example", 403, "not listed"],
    ["a denied address", { deny: ["9.9.9.1"] }, "api.example", 502, "deny"],
    ["a denied port 443", { deny: ["9.9.9.1:443"] }, "api.example", 502, "deny"],
    ["a reserved address", {}, "private.example", 502, "reserved"],
    ["a name without an address", {}, "none.example", 502, "dns"],
  ];
  for (const [what, given, host, status, noted] of shut) {
    test(what, async () => {
      const inject = [{ host, headers: { "X-Key": secret } }];
      await using at = await world({ ...policy, ...given, inject });
      assert.equal(statusOf(await at.ask(get(host), "9.9.9.3")), status);
      assert.deepEqual(at.dialler.dialled, []);
      assert.match(at.relay.recent(at.run).join(), new RegExp(`^(denied|failed) ${noted} ${host} `));
    });
  }

  test("a listed name is enough under an allowlist; under none nothing is opened", async () => {
    await using at = await world({ ...policy, egress: "allowlist", allow: ["api.example:80"] });
    assert.equal(statusOf(await at.ask(get("api.example"))), 200);
    at.relay.setPolicy(at.run, { ...policy, egress: "none" });
    assert.equal(await at.peer.connect("9.9.9.1", 80), "denied: egress none");
  });
});

describe("a smuggled request", () => {
  const one = "GET /1 HTTP/1.1\r\nHost: api.example\r\n";
  const next = (host: string) => `GET /2 HTTP/1.1\r\nHost: ${host}\r\n\r\n`;
  const cases: [what: string, text: string, answers: number[], sent: number][] = [
    ["a second one to another host", `${one}\r\n${next("other.example")}`, [200, 403], 1],
    ["a second one to no host", `${one}\r\nGET /2 HTTP/1.1\r\n\r\n`, [200, 400], 1],
    [
      "a second one to two hosts",
      `${one}\r\nGET /2 HTTP/1.1\r\nHost: api.example\r\nHost: other.example\r\n\r\n`,
      [200, 400],
      1,
    ],
    [
      "a second one for a whole URL",
      `${one}\r\nGET http://other.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n`,
      [200, 400],
      1,
    ],
    ["a second one to another port", `${one}\r\n${next("api.example:8080")}`, [200, 403], 1],
    ["two hosts", `${one}Host: other.example\r\n\r\n`, [403], 0],
    ["a whole URL", "GET http://api.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n", [403], 0],
    ["CONNECT", "CONNECT api.example:443 HTTP/1.1\r\nHost: api.example\r\n\r\n", [403], 0],
    [
      "length and chunks",
      `${one}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n${next("api.example")}`,
      [400],
      0,
    ],
    ["two lengths", `${one}Content-Length: 0\r\nContent-Length: 9\r\n\r\n`, [400], 0],
    ["another coding", `${one}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n`, [502], 0],
    ["a folded line", `${one}X: 1\r\n Host: other.example\r\n\r\n`, [403], 0],
    ["lines that end in LF", "GET / HTTP/1.1\nHost: api.example\n\n", [403], 0],
    ["an empty line before", `\r\n${one}\r\n`, [403], 0],
    ["a method in lower case", "get / HTTP/1.1\r\nHost: api.example\r\n\r\n", [403], 0],
    ["a port of its own", "GET / HTTP/1.1\r\nHost: api.example:8080\r\n\r\n", [403], 0],
    ["a head without its end", one, [403], 0],
  ];
  for (const [what, text, answers, sent] of cases) {
    test(`${what}: ${answers.join(", ")}`, async () => {
      await using at = await world();
      const answer = await at.ask(text);
      assert.deepEqual(
        [...answer.matchAll(/HTTP\/1\.1 (\d+) /g)].map(([, status]) => Number(status)),
        answers,
      );
      assert.equal(at.server.seen.length, sent);
      assert.deepEqual(
        at.dialler.dialled,
        Array(sent).fill("9.9.9.1:443"),
        "nothing left in plain HTTP, or to another host",
      );
      assert.doesNotMatch(answer, /s3cret/);
    });
  }

  test("a header named by Connection keeps the rule's value", async () => {
    await using at = await world();
    await at.ask(`${one}Connection: close, Authorization\r\nAuthorization: mine\r\n\r\n`);
    const raw = at.server.seen[0]!.raw;
    assert.equal(raw[raw.indexOf("Authorization") + 1], secret);
    assert.equal(raw.includes("mine"), false);
  });

  test("more requests than wait end the connection", async () => {
    await using at = await world();
    const stream = await at.peer.connected("9.9.9.1", 80);
    at.server.onHead = () => {};
    stream.write(`${one}\r\n`.repeat(40));
    assert.equal(await stream.outcome(), "reset");
    assert.equal(at.server.seen.length, 0);
  });
});

describe("what names no rule's host", () => {
  const ways: [what: string, text: string][] = [
    ["another host", get("other.example")],
    ["an odd head of another host", "GET / HTTP/1.1\r\nHost: other.example\r\n X: folded\r\n\r\n"],
    ["another protocol", "\0\x01binary"],
    ["another protocol's line", "HELO a\r\n"],
    ["TLS", "\x16\x03\x01\x00\x05hello"],
    ["nothing", ""],
  ];
  for (const [what, text] of ways) {
    test(`${what} goes to the asked address under public`, async () => {
      await using at = await world();
      await at.ask(text, "9.9.9.3");
      assert.deepEqual(at.dialler.dialled, ["9.9.9.3:80"]);
      assert.equal(at.relay.recent(at.run).at(-1), "failed refused 9.9.9.3 80");
    });
  }

  test("goes to the asked address that an entry names, after 10 seconds of silence too", async (t) => {
    await using at = await world({ ...policy, egress: "allowlist", allow: ["9.9.9.3:80"] });
    await at.ask(get("other.example"), "9.9.9.3");
    assert.deepEqual(at.dialler.dialled, ["9.9.9.3:80"]);
    t.mock.timers.enable({ apis: ["setTimeout"] });
    const silent = await at.peer.connected("9.9.9.3", 80);
    t.mock.timers.tick(9_999);
    assert.equal(at.dialler.dialled.length, 1);
    t.mock.timers.tick(1);
    assert.equal(await silent.text(), "");
    assert.deepEqual(at.dialler.dialled, ["9.9.9.3:80", "9.9.9.3:80"]);
    assert.equal(await at.peer.connect("9.9.9.4", 80), "denied: not listed");
  });

  test("is decided by its name under an allowlist", async () => {
    await using at = await world({ ...policy, egress: "allowlist", allow: ["other.example"] });
    await at.ask(get("other.example"), "8.8.8.8");
    assert.deepEqual(at.dialler.dialled, ["9.9.9.3:80"]);
    assert.equal(statusOf(await at.ask(get("more.example"))), 403);
  });
});

describe("a change of the policy", () => {
  test("resets a request that it forbids, and no other", async () => {
    await using at = await world();
    const heads: unknown[] = [];
    const both = Promise.withResolvers<void>();
    at.server.onHead = (request) => {
      heads.push(request.url);
      if (heads.length === 1) both.resolve();
    };
    const stream = await at.peer.connected("9.9.9.1", 80);
    stream.write(get("api.example"));
    await both.promise;
    at.relay.setPolicy(at.run, { ...policy, deny: ["9.9.9.2"] });
    assert.equal(at.relay.connectionsOpen(at.run), 1);
    at.relay.setPolicy(at.run, { ...policy, inject: policy.inject!.slice(1) });
    assert.equal(await stream.outcome(), "reset");
    assert.equal(at.relay.connectionsOpen(at.run), 0);
  });
});
