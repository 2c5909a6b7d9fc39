import assert from "node:assert/strict";
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
