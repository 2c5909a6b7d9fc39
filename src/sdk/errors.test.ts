import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { closeCodes } from "../wire/errors.ts";
import { connectionErrorOf, hasCode, isCommandNotFound, refusalOf, refusalWith } from "./errors.ts";
import { endingError } from "./message-socket.ts";

test("a refusal carries the service's code, status, details and Retry-After", async () => {
  const body = JSON.stringify({ error: { code: "quota_exceeded", message: "too many", details: { most: 5 } } });
  const error = await refusalOf(new Response(body, { status: 429, headers: { "retry-after": "7" } }));
  assert.ok(hasCode(error, "quota_exceeded") && "status" in error);
  assert.deepEqual([error.status, error.details, error.retryAfterSec], [429, { most: 5 }, 7]);
});

test("a command that does not exist is told by what the service names, not by the message", () => {
  const named = refusalWith("command_not_found", "nope: Permission denied");
  assert.deepEqual([named.code, isCommandNotFound(named)], ["invalid_request", true]);
  assert.ok(!isCommandNotFound(refusalWith("invalid_request", "nope: command not found")));
});

test("an answer that is not the service's is cut_off", async () => {
  for (const body of ["<h1>502</h1>", "null", '{"error":"x"}', ""])
    assert.ok(hasCode(await refusalOf(new Response(body, { status: 502 })), "cut_off"));
});

test("errors of fetch are classified by their cause", () => {
  const caused = (code: string) => new TypeError("fetch failed", { cause: Object.assign(new Error(code), { code }) });
  assert.equal(connectionErrorOf(caused("ECONNREFUSED"), "http://x").code, "unreachable");
  const both = Object.assign(new AggregateError([caused("ECONNREFUSED")]), {});
  assert.equal(connectionErrorOf(new TypeError("failed", { cause: both }), "http://x").code, "unreachable");
  const deno = "error sending request for url (http://x/): client error (Connect): tcp connect error";
  assert.equal(connectionErrorOf(new TypeError(deno), "http://x").code, "unreachable");
  assert.equal(connectionErrorOf(caused("ECONNRESET"), "http://x").code, "cut_off");
  assert.equal(connectionErrorOf(new TypeError("Failed to fetch"), "http://x").code, "cut_off");
});

test("a request that was never sent is unreachable, with what to do", async (t) => {
  const plain = createServer((_, answer) => answer.end("plain"));
  t.after(() => plain.close());
  await once(plain.listen(0, "127.0.0.1"), "listening");
  const { port } = plain.address() as AddressInfo;
  const failure = (url: string) =>
    fetch(url).then(
      () => assert.fail(`${url} answered`),
      (error) => connectionErrorOf(error, url),
    );
  const expected: [url: string, RegExp][] = [
    [`https://127.0.0.1:${port}`, new RegExp(`does not speak TLS: try http://127.0.0.1:${port}$`)],
    ["http://127.0.0.1:6000", /connects to no service at the port .*6000/],
    ["localhost:8080", /"localhost:8080", which is not a URL/],
    ["http://127.0.0.1:99999", /"http:\/\/127.0.0.1:99999", which is not a URL/],
  ];
  for (const [url, pattern] of expected) {
    const { code, message } = await failure(url);
    assert.equal(code, "unreachable");
    assert.match(message, pattern);
  }
  const certificate = (code: string) =>
    connectionErrorOf(Object.assign(new Error("self-signed certificate"), { code }), "https://x");
  assert.match(certificate("DEPTH_ZERO_SELF_SIGNED_CERT").message, /not trusted: self-signed.*NODE_EXTRA_CA_CERTS/);
  assert.match(certificate("CERT_HAS_EXPIRED").message, /^the certificate of https:\/\/x is refused/);
  assert.deepEqual(certificate("CERT_HAS_EXPIRED").code, "unreachable");
});

test("a proxy's 413 names the proxy's limit", async () => {
  const error = await refusalOf(new Response("<h1>413</h1>", { status: 413 }));
  assert.match(error.message, /a proxy before the service.*client_max_body_size/);
  assert.ok(hasCode(error, "cut_off"));
  const own = JSON.stringify({ error: { code: "too_large", message: "over 1 MiB" } });
  assert.ok(hasCode(await refusalOf(new Response(own, { status: 413 })), "too_large"));
});

test("a close code maps to its error", () => {
  const code = (close: number, said?: string) => endingError({ code: close, reason: "" }, said, "not_found").code;
  assert.equal(code(closeCodes.paused), "invalid_state");
  assert.equal(code(closeCodes.destroyed), "not_found");
  assert.equal(code(closeCodes.revoked), "unauthorized");
  assert.equal(code(closeCodes.tooSlow, "slow"), "fell_behind");
  assert.equal(code(closeCodes.done, "no such session"), "not_found");
  assert.equal(code(closeCodes.done), "cut_off");
  assert.equal(code(1006, "half a word"), "cut_off");
  assert.equal(endingError(undefined, undefined, "not_found").code, "cut_off");
});
