import assert from "node:assert/strict";
import { test } from "node:test";
import { type Body, bodyOf, headersForClient, headersForGuest, trailersOf } from "./port-heads.ts";

const forwarding = { remote: "10.0.0.1", host: "h", proto: "https", isAppended: false } as const;
const forwarded = ["X-Forwarded-For", "10.0.0.1", "X-Forwarded-Host", "h", "X-Forwarded-Proto", "https"];
const guest = (headers: string[], more: { body?: Body; asksForUpgrade?: boolean; hostHeader?: string } = {}) =>
  headersForGuest(headers, { forwarding, hostHeader: null, body: "none", asksForUpgrade: false, ...more });

test("a body is delimited by its length or in chunks, and in no other way", () => {
  const cases: [string[], Body | undefined][] = [
    [[], "none"],
    [["content-length", "0"], "none"],
    [["Content-Length", "5"], "length"],
    [["Transfer-Encoding", "Chunked"], "chunked"],
    [["Transfer-Encoding", "gzip, chunked"], undefined],
    [["Transfer-Encoding", "gzip", "transfer-encoding", "chunked"], undefined],
    [["Transfer-Encoding", "identity"], undefined],
  ];
  for (const [headers, body] of cases) assert.equal(bodyOf(headers), body, headers.join(": "));
});

test("hop-by-hop headers and those that Connection names do not reach the guest", () => {
  const headers = [
    "Host",
    "h:1",
    "Connection",
    "close, X-Hop",
    "x-hop",
    "1",
    "Keep-Alive",
    "5",
    "Proxy-Connection",
    "x",
    "A",
    "b",
  ];
  const more = [
    "connection",
    "Host, content-length",
    "TE",
    "gzip, trailers;q=1",
    "Upgrade",
    "h2c",
    "Content-Length",
    "0",
    "a",
    "",
  ];
  const expected = ["Host", "h:1", "A", "b", "Content-Length", "0", "a", "", "TE", "trailers", ...forwarded];
  assert.deepEqual(guest([...headers, ...more]), expected);
});

test("an upgrade keeps Upgrade, and Connection names nothing else", () => {
  const headers = [
    "Host",
    "h",
    "connection",
    "keep-alive, Upgrade",
    "Connection",
    "x-hop",
    "upgrade",
    "websocket",
    "X-Hop",
    "1",
  ];
  const kept = ["Host", "h", "connection", "Upgrade", "upgrade", "websocket", ...forwarded];
  assert.deepEqual(guest(headers, { asksForUpgrade: true }), kept);
  const h2c = ["Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c", "HTTP2-Settings", "AA"];
  assert.deepEqual(guest(h2c, { asksForUpgrade: true }), [...h2c, ...forwarded]);
  assert.deepEqual(guest(h2c), forwarded);
});

test("the client's own words about its address are replaced, behind a trusted proxy continued", () => {
  const headers = [
    "X-Forwarded-For",
    "1.1.1.1",
    "x-forwarded-host",
    "evil",
    "X-FORWARDED-PROTO",
    "ftp",
    "X_Forwarded_For",
    "3.3.3.3",
    "Forwarded",
    "for=1",
  ];
  assert.deepEqual(guest(headers), ["Forwarded", "for=1", ...forwarded]);
  const behind = headersForGuest(["X-Forwarded-For", "1.1.1.1", "X-Forwarded-For", "2.2.2.2"], {
    ...{ forwarding: { ...forwarding, isAppended: true }, hostHeader: null, body: "none", asksForUpgrade: false },
  });
  assert.deepEqual(behind, ["X-Forwarded-For", "1.1.1.1, 2.2.2.2, 10.0.0.1", ...forwarded.slice(2)]);
});

test("the Host is replaced in its place, and Trailer stays before chunks alone", () => {
  const headers = ["A", "1", "hOST", "h", "Trailer", "X-Sum", "Transfer-Encoding", "chunked", "B", "2"];
  const replaced = ["A", "1", "hOST", "localhost:5173"];
  assert.deepEqual(guest(headers, { hostHeader: "localhost:5173" }), [...replaced, "B", "2", ...forwarded]);
  const chunked = ["Trailer", "X-Sum", "B", "2", "Transfer-Encoding", "chunked"];
  assert.deepEqual(guest(headers, { body: "chunked" }), ["A", "1", "hOST", "h", ...chunked, ...forwarded]);
});

test("the guest's answer keeps what is the client's", () => {
  const headers = [
    ...[
      "Server",
      "x",
      "Connection",
      "keep-alive, X-Hop",
      "X-Hop",
      "1",
      "Keep-Alive",
      "5",
      "Alt-Svc",
      "h3",
      "Set-Cookie",
      "a",
    ],
    ...["set-cookie", "b", "Content-Length", "5", "Transfer-Encoding", "chunked", "Trailer", "X-Sum"],
  ];
  const kept = ["Server", "x", "Set-Cookie", "a", "set-cookie", "b"];
  assert.deepEqual(headersForClient(headers, { status: 200, isChunked: false }), [...kept, "Content-Length", "5"]);
  assert.deepEqual(headersForClient(headers, { status: 200, isChunked: true }), [...kept, "Trailer", "X-Sum"]);
  assert.deepEqual(headersForClient(headers, { status: 204, isChunked: false }), kept);
  const upgrade = ["connection", "upgrade", "upgrade", "x", "Sec-A", "1"];
  assert.deepEqual(headersForClient(upgrade, { status: 101, isChunked: false }), [
    "connection",
    "Upgrade",
    "upgrade",
    "x",
    "Sec-A",
    "1",
  ]);
});

test("a trailer brings no credential, and nothing that frames or routes", () => {
  const odd = [
    "Cookie",
    "Host",
    "Content-Length",
    "Transfer-Encoding",
    "X-API-Key",
    "x-capsule-token",
    "Authorization",
    "Trailer",
  ];
  const trailers = [...odd, "Connection", "X-Forwarded-For", "Alt-Svc"].flatMap((name) => [name, "x"]);
  assert.deepEqual(trailersOf([...trailers, "X-Sum", "1", "x-sum", "2"]), [
    ["X-Sum", "1"],
    ["x-sum", "2"],
  ]);
});
