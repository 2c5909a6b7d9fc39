/**
 * Random heads and framings at a port's URL: what reaches a guest is one whole request without a credential in its head, whatever came
 * before and behind it on the connection. Anything else is refused.
 */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Api, keys } from "../../../test/api.ts";
import { Random } from "../../../test/conformance/random.ts";
import { GuestServer, ok, PortUrls } from "../../../test/port-urls.ts";
import { waitFor } from "../../../test/wait-for.ts";

const api = new Api({ requests_per_sec: 1_000_000, refused_keys_per_sec: 1_000_000 });
const urls = new PortUrls(api);
const rounds = 200;

before(() => urls.listen());
after(() => urls.close());

const framings: readonly (readonly [headers: string, body: string])[] = [
  ["", ""],
  ["Content-Length: 5\r\n", "hello"],
  ["Content-Length: 5\r\nContent-Length: 5\r\n", "hello"],
  ["Content-Length: 5\r\nContent-Length: 6\r\n", "hello"],
  ["Content-Length: +5\r\n", "hello"],
  ["Content-Length: 5, 5\r\n", "hello"],
  ["Content-Length: 0x5\r\n", "hello"],
  ["Content-Length:\r\n 5\r\n", "hello"],
  ["Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"],
  ["Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"],
  ["Transfer-Encoding: Chunked\r\n", '5;a="b\r\n"\r\nhello\r\n0\r\n\r\n'],
  ["Transfer-Encoding: chunked\r\n", "5;ext=1\r\nhello\r\n0\r\nX-API-Key: KEY\r\n\r\n"],
  ["Transfer-Encoding: chunked\r\n", "05\nhello\n0\n\n"],
  ["Transfer-Encoding: chunked\r\n", "5\r\nhelloX\r\n0\r\n\r\n"],
  ["Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"],
  ["Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"],
  ["Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n"],
  ["Transfer-Encoding : chunked\r\n", "0\r\n\r\n"],
  ["Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"],
  ["Transfer_Encoding: chunked\r\nContent-Length: 5\r\n", "hello"],
];

const extras = [
  ...[
    "Cookie: capsule_token=KEY\r\n",
    "cookie: a=1; capsule_token=KEY ;b=2\r\n",
    "X-Capsule-Token: KEY\r\n",
    "X-API-kEY: KEY\r\n",
  ],
  ...[
    "Authorization: Bearer KEY\r\n",
    "Connection: Host, Cookie, X-API-Key, Content-Length\r\n",
    "A: b\r\n c: d\r\n",
    "A: b\nC: d\r\n",
  ],
  ...[
    "A: b\rC: d\r\n",
    " A: b\r\n",
    "A\r\n",
    "A: \x00\r\n",
    "Upgrade: x\r\nConnection: Upgrade\r\n",
    "Expect: 100-continue\r\n",
    "TE: trailers\r\n",
  ],
  ...[
    "Trailer: Host\r\n",
    "X-Forwarded-Host: localhost\r\n",
    "Host: localhost\r\n",
    "Accept: */*\r\n",
    "\x80: b\r\n",
    "A: \xff\r\n",
  ],
];

const targets = [
  "/",
  "/?capsule_token=KEY",
  "/a?b&capsule%5ftoken=KEY",
  "*",
  "//",
  "/%00",
  "/ x",
  "/\t",
  "/\xe9",
  "http://HOST/",
  "http://x/",
];

function randomRequest(random: Random, host: string): string {
  const pick = <T>(from: readonly T[]): T => from[random.below(from.length)] as T;
  const [framing, body] = random.below(3) === 0 ? (["", ""] as const) : pick(framings);
  const more = Array.from({ length: random.below(4) }, () => pick(extras));
  const lines = [`Host: ${host}\r\n`, `X-API-Key: ${keys.red}\r\n`, framing, ...more];
  const order = random.below(2) === 0 ? lines : lines.reverse();
  const method = pick(["GET", "POST", "PUT", "HEAD", "OPTIONS", "PROPFIND", "get", "G ET"]);
  const version = random.below(10) === 0 ? "HTTP/1.0" : "HTTP/1.1";
  const text = `${method} ${pick(targets)} ${version}\r\n${order.join("")}\r\n${body}`;
  return text.replaceAll("KEY", keys.red).replaceAll("HOST", host);
}

/** The bytes behind the first request of these; undefined: it is not whole. */
function behindFirst(bytes: string): string | undefined {
  const [head = "", rest] = bytes.split(/\r\n\r\n(.*)/s);
  if (rest === undefined) return undefined;
  const lengths = [...head.matchAll(/^content-length: *([0-9]+)\r?$/gim)];
  const isChunked = /^transfer-encoding:/im.test(head);
  assert.ok(lengths.length + Number(isChunked) <= 1, `one framing:\n${head}`);
  if (!isChunked)
    return rest.length < Number(lengths[0]?.[1] ?? 0) ? undefined : rest.slice(Number(lengths[0]?.[1] ?? 0));
  return /^(?:[1-9a-f][0-9a-f]*\r\n[\s\S]*?\r\n)*?0\r\n(?:[^\r\n]+\r\n)*\r\n([\s\S]*)$/.exec(rest)?.[1];
}

test("a guest is sent whole requests without credentials, one on a connection", async (t) => {
  const random = new Random(t);
  const id = await api.capsule();
  const host = `80-${id}.localhost`;
  const server = GuestServer.answering(api, id, 80, ok);
  const behind = `GET /behind HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\nX-API-Key: ${keys.red}\r\n\r\n`;
  for (let round = 0; round < rounds; round++) {
    const sent = randomRequest(random, host) + behind;
    const from = server.heard.length;
    const socket = await urls.connection();
    socket.write(Buffer.from(sent, "latin1"));
    const isOver = () => socket.readableEnded || socket.destroyed;
    await urls.received(socket, (text) => text.includes("\r\n\r\n") || isOver());
    socket.resume().end(); // Node reads nothing behind an upgrade that is served as an ordinary request
    await waitFor("the end of the connection", isOver);
    for (const heard of server.heard.slice(from)) {
      const [head = ""] = heard.split("\r\n\r\n", 1);
      assert.doesNotMatch(head, /capk_|capsule.{1,3}token/i, sent);
      assert.doesNotMatch(head, /[^\r]\n|\r[^\n]/, sent);
      if (head === "") continue; // its client was gone
      assert.equal(head.match(/^host:/gim)?.length, 1, sent);
      assert.equal(behindFirst(heard) ?? "", "", sent);
    }
  }
  assert.ok(server.heard.length > rounds / 10, "most are refused");
});
