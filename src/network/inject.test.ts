import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { CapsuleError } from "../wire/errors.ts";
import { parseInject } from "./inject.ts";

const limits = { inject_rules_max: 3, inject_headers_max: 2, inject_value_max_bytes: 20 };
const parse = (value: unknown) => parseInject(value, limits);

function refusedField(value: unknown): unknown {
  try {
    parse(value);
  } catch (error) {
    assert.ok(error instanceof CapsuleError);
    assert.equal(error.code, "invalid_request");
    assert.doesNotMatch(error.message, /s3cret/, "no message has a value");
    return error.details?.field;
  }
  return undefined;
}

describe("rules of inject", () => {
  test("hosts are domains in the form of policies, and values are kept apart from the rules", () => {
    const { rules, values } = parse([
      { host: "API.Example.", headers: { "X-Key": "s3cret \t~", authorization: null } },
      { host: "bücher.example", headers: {}, more: 1 },
    ]);
    assert.deepEqual(rules, [
      { host: "api.example", headers: ["X-Key", "authorization"] },
      { host: "xn--bcher-kva.example", headers: [] },
    ]);
    const field = (name: string) => `network.inject[0].headers.${name}`;
    assert.deepEqual(values, [
      { host: "api.example", name: "X-Key", value: "s3cret \t~", field: field("X-Key") },
      { host: "api.example", name: "authorization", value: null, field: field("authorization") },
    ]);
  });

  const rule = (headers: unknown, host: unknown = "a.example") => [{ host, headers }];
  const flaws: [unknown, string][] = [
    [{}, "network.inject"],
    ["a", "network.inject"],
    [["a", "b", "c", "d"].map((name) => ({ host: `${name}.example`, headers: {} })), "network.inject"],
    [[null], "network.inject[0]"],
    [[[]], "network.inject[0]"],
    ...[
      "",
      "*.a.example",
      "a.example:443",
      "1.2.3.4",
      "1.2.3.0/24",
      "::1",
      "a..b",
      "http://a.example",
      "0x7f",
      1,
      null,
    ].map((host): [unknown, string] => [rule({}, host), "network.inject[0].host"]),
    [[...rule({}), ...rule({}, "A.example.")], "network.inject[1].host"],
    [rule(undefined), "network.inject[0].headers"],
    [rule([]), "network.inject[0].headers"],
    [rule({ a: "1", b: "2", c: "3" }), "network.inject[0].headers"],
    [rule({ a: "1", A: "2" }), "network.inject[0].headers.A"],
    ...["Host", "content-length", "Transfer-Encoding", "CONNECTION", "Keep-Alive", "TE", "Trailer", "Upgrade"].map(
      (name): [unknown, string] => [rule({ [name]: "s3cret" }), `network.inject[0].headers.${name}`],
    ),
    ...["Proxy-Authorization", "Proxy-Connection", "Expect", "a b", "a:", "ä", ""].map((name): [unknown, string] => [
      rule({ [name]: "s3cret" }),
      `network.inject[0].headers.${name}`,
    ]),
    ...["s3cret\r\nX: y", "s3cret\n", "s3cret\0", "s3crét", "s3cret-longer-than-20", 1, true, {}].map(
      (value): [unknown, string] => [rule({ "X-Key": value }), "network.inject[0].headers.X-Key"],
    ),
  ];
  for (const [value, field] of flaws) {
    test(`${JSON.stringify(value)} is refused for ${field}`, () => assert.equal(refusedField(value), field));
  }
});
