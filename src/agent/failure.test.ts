import assert from "node:assert/strict";
import { describe, it } from "node:test";
import fc from "fast-check";
import { failureOf, printable } from "./failure.ts";
import { Verb } from "./protocol.ts";

describe("failures", () => {
  it("map to the API's error codes", () => {
    const codes = (verb: Verb, names: string[]) => names.map((name) => failureOf(verb, name, "m").code);
    assert.deepEqual(
      codes(Verb.READ, ["not_found", "invalid", "is_directory", "not_directory", "too_large", "no_space", "conflict"]),
      ["not_found", "invalid_request", "invalid_request", "invalid_request", "too_large", "no_space", "conflict"],
    );
    assert.deepEqual(codes(Verb.EXEC, ["too_large", "command_not_found", "too_many", "asleep", "internal"]), [
      "invalid_request",
      "invalid_request",
      "quota_exceeded",
      "agent_error",
      "agent_error",
    ]);
    assert.equal(failureOf(Verb.LIST, "too_large", "m").code, "invalid_request");
    assert.equal(failureOf(Verb.WRITE, "too_large", "m").code, "too_large");
  });

  it("keep the agent's code", () => {
    assert.equal(failureOf(Verb.EXEC, "command_not_found", "m").failure, "command_not_found");
    assert.equal(failureOf(Verb.ATTACH, "slow_reader", "m").failure, "slow_reader");
    for (const strange of ["", "constructor", "__proto__", "Not_Found"]) {
      assert.equal(failureOf(Verb.EXEC, strange, "m").failure, "internal");
    }
  });

  it("have a printable message of limited length", () => {
    assert.equal(printable("no /tmp/ä: nothing"), "no /tmp/ä: nothing");
    assert.equal(printable("a\nb\u001b[31m\u202e"), "a\ufffdb\ufffd[31m\ufffd");
    assert.notEqual(failureOf(Verb.EXEC, "internal", "").message, "");
    fc.assert(
      fc.property(fc.string({ unit: "binary", maxLength: 2_000 }), (text) => {
        const clean = printable(text);
        assert.ok(clean.length <= 500);
        assert.ok(clean.isWellFormed());
        assert.doesNotMatch(clean, /\p{Cc}/u);
      }),
    );
  });
});
