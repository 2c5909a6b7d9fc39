/** Hosts of HTTP/1 requests: of real clients, cut in any way, and odd ones, which are refused. */
import assert from "node:assert/strict";
import { request } from "node:http";
import { Duplex } from "node:stream";
import { describe, test } from "node:test";
import { mutations, randomOf } from "../../test/relay/mutations.ts";
import { readHttpHead } from "./http-head.ts";

const head = (...lines: string[]) => Buffer.from(`${[...lines, "", ""].join("\r\n")}`, "latin1");
const good = head("GET /simple/?q=1 HTTP/1.1", "Host: PyPI.example", "Accept: */*", "X-Odd:\t a: b ");
const isOdd = (bytes: Buffer) => "odd" in readHttpHead(bytes);

test("the Host of Node's own client", async () => {
  const { promise, resolve } = Promise.withResolvers<Buffer>();
  const write = (chunk: Buffer, _: string, done: () => void) => {
    resolve(chunk);
    done();
  };
  const stream = new Duplex({ read() {}, write });
  const asked = request({
    host: "a.example",
    headers: { host: "a.example:80" },
    createConnection: () => stream as never,
  });
  asked.on("error", () => {});
  asked.end();
  assert.deepEqual(readHttpHead(await promise), { name: "a.example", port: 80 });
  asked.destroy();
});

describe("a Host that is read", () => {
  const cases: [line: string, found: object][] = [
    ["Host: a.example", { name: "a.example" }],
    ["host:a.example", { name: "a.example" }],
    ["HOST: \t A.Example \t", { name: "a.example" }],
    ["Host: a.example:8080", { name: "a.example", port: 8080 }],
    ["Host: _x-1.a.example", { name: "_x-1.a.example" }],
  ];
  for (const [line, found] of cases)
    test(line, () => assert.deepEqual(readHttpHead(head("POST / HTTP/1.0", line)), found));

  for (const target of ["/", "*", "//evil.example/a", "/%00", "/a?b=http://c.example/", "/é"])
    test(`with the target ${target}`, () => {
      assert.deepEqual(readHttpHead(head(`OPTIONS ${target} HTTP/1.1`, "Host: a.example")), { name: "a.example" });
    });
});

test("the body does not matter, and each part before asks for more, whatever was scanned", () => {
  assert.deepEqual(readHttpHead(Buffer.concat([good, Buffer.from("GET / HTTP/1.1\nHost: b\r\n\r\n")])), {
    name: "pypi.example",
  });
  for (let length = 1; length < good.length; length++) {
    assert.deepEqual(readHttpHead(good.subarray(0, length)), { need: length + 1 });
    assert.deepEqual(readHttpHead(good, length), { name: "pypi.example" });
  }
});

test("a head of 16 KiB is read, a longer one refused when 16 KiB have come", () => {
  const padded = (bytes: number) => head("GET / HTTP/1.1", "Host: a.example", `X: ${"x".repeat(bytes)}`);
  const most = 16_384 - padded(0).length;
  assert.deepEqual(readHttpHead(padded(most)), { name: "a.example" });
  assert.ok(isOdd(padded(most + 1)));
  assert.ok(isOdd(padded(20_000).subarray(0, 16_384)));
  assert.ok("need" in readHttpHead(padded(20_000).subarray(0, 16_383)));
});

describe("an odd head is refused", () => {
  const first = "GET / HTTP/1.1";
  const host = "Host: a.example";
  const cases: Record<string, Buffer> = {
    "no Host": head(first),
    "two Hosts": head(first, host, host),
    "two Hosts, apart": head(first, host, "Accept: */*", "hOST: b.example"),
    "two names in a Host": head(first, "Host: a.example, b.example"),
    "a folded Host": head(first, "Host:", " a.example"),
    "a folded line": head(first, host, "X: a", "\tb"),
    "a line that begins with a space": head(first, ` ${host}`),
    "a space before the colon": head(first, "Host : a.example"),
    "a line without a colon": head(first, host, "x"),
    "an empty name": head(first, host, ": x"),
    "a zero byte": head(first, host, "X: a\0b"),
    "a bare CR": head(first, `${host}\rX: y`),
    "a bare LF": head(first, `${host}\nHost: b.example`),
    "LF only": Buffer.from(`${first}\n${host}\n\n\r\n\r\n`),
    "a line before": head("", first, host),
    CONNECT: head("CONNECT a.example:443 HTTP/1.1", host),
    "an absolute-form target": head("GET http://b.example/ HTTP/1.1", host),
    "an authority as target": head("GET b.example:80 HTTP/1.1", host),
    "no target": head("GET HTTP/1.1", host),
    "HTTP/0.9": head("GET /", host),
    "HTTP/2": head("PRI * HTTP/2.0", "", "SM"),
    "HTTP/1.2": head("GET / HTTP/1.2", host),
    "a space in the target": head("GET /a b HTTP/1.1", host),
    "a tab for a space": head("GET\t/ HTTP/1.1", host),
    "a small letter in the method": head("Get / HTTP/1.1", host),
    "a long method": head(`${"A".repeat(40)} / HTTP/1.1`, host),
    "a user in the Host": head(first, "Host: x@a.example"),
    "an empty Host": head(first, "Host:"),
    "an address": head(first, "Host: 9.9.9.9"),
    "an IPv6 address": head(first, "Host: [::1]"),
    "a number": head(first, "Host: 2130706433"),
    "a dot at the end": head(first, "Host: a.example."),
    "a port that is none": head(first, "Host: a.example:080"),
    "an empty port": head(first, "Host: a.example:"),
    "a letter of two bytes": head(first, "Host: bücher.example"),
    "a letter of two bytes at the end": head(first, "Host: a.examplé"),
    "a slash in the Host": head(first, "Host: a.example/b"),
    TLS: Buffer.from([22, 3, 1]),
    SSH: Buffer.from("SSH-2.0-OpenSSH_10\r\n"),
  };
  for (const [name, bytes] of Object.entries(cases)) test(name, () => assert.ok(isOdd(bytes)));
});

test("whatever the bytes, the answer is the only Host in them, a refusal, or a need for more within 16 KiB", (t) => {
  const { random, seed } = randomOf();
  t.diagnostic(`seed ${seed}`);
  const seeds = [good, head("GET / HTTP/1.1", "Host: a.example:80"), head("HEAD * HTTP/1.0", "A: b", "host: c.d")];
  for (const bytes of mutations(seeds, random)) {
    const found = readHttpHead(bytes);
    if ("name" in found) {
      const [before = ""] = bytes.toString("latin1").split("\r\n\r\n");
      const hosts = before.split(/\r\n|\n|\r/).filter((line) => /^[\s\0]*host[\s\0]*:/i.test(line));
      assert.equal(hosts.length, 1, `seed ${seed}`);
      assert.ok(hosts[0]!.toLowerCase().includes(found.name), `seed ${seed}`);
    } else if ("need" in found) assert.ok(found.need > bytes.length && found.need <= 16_384, `seed ${seed}`);
    else assert.ok(found.odd.length > 0);
  }
});
