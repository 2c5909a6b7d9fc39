/** JSON bodies and messages that would cost much to parse. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Api } from "../../test/api.ts";
import { Random } from "../../test/conformance/random.ts";
import { hasTooManyValues, jsonValuesMax } from "./json-values.ts";

/** An object with so many values, its own and the field's name included. */
const bodyOf = (values: number) => `{"ignored":[${Array(values - 3).fill(0)}]}`;

test("a JSON body of more values than allowed is 400, and is not parsed", async (t) => {
  const api = new Api();
  const post = (body: string) =>
    api.call("POST", "/v1/capsules", { body, headers: { "content-type": "application/json" } });
  assert.equal((await post(bodyOf(jsonValuesMax))).status, 201);
  const parse = t.mock.method(JSON, "parse");
  const refused = await api.app.inject({
    ...{ method: "POST", url: "/v1/capsules", payload: bodyOf(jsonValuesMax + 1) },
    headers: { "x-api-key": `capk_${"1".repeat(48)}`, "content-type": "application/json" },
  });
  assert.equal(parse.mock.callCount(), 0);
  parse.mock.restore();
  const { error } = refused.json();
  assert.deepEqual([refused.statusCode, error.code], [400, "invalid_request"]);
  assert.match(error.message, /40000 values/);
  assert.equal((await api.call("GET", "/v1/limits")).json.json_values_max, jsonValuesMax);
});

test("brackets, commas and colons in strings are no values, behind escaped quotes either", () => {
  const text = (string: string) => Buffer.from(`{"a":"${string.repeat(20_000)}"}`);
  for (const string of [",,:[{", '\\",', "\\\\,,,", '\\\\\\",:'])
    assert.equal(hasTooManyValues(text(string)), false, string);
  assert.equal(hasTooManyValues(Buffer.from('["\\\\",'.repeat(20_001))), true);
  for (const tiny of ["[", "{", "0,", '"":'])
    assert.equal(hasTooManyValues(Buffer.from(tiny.repeat(jsonValuesMax + 1))), true);
});

test("of random texts with short and long strings, the values are counted one by one", (t) => {
  const random = new Random(t);
  const long = "y".repeat(300);
  const pieces = [
    "0,",
    "[",
    '{"a":',
    '"",',
    '"\\\\",',
    '"\\"",',
    `"${long}",`,
    `"${long}\\\\",`,
    `"${long}\\",:[{${long}",`,
  ];
  const outcomes = new Set<boolean>();
  for (let round = 0; round < 40; round++) {
    const of = Array.from({ length: 4 }, () => pieces[random.below(pieces.length)]);
    const count = 20_000 + random.below(20_000);
    const text = Array.from({ length: count }, () => of[random.below(of.length)]).join("");
    const outside = text.replaceAll(/"(?:[^"\\]|\\.)*"/g, "");
    const expected = 1 + outside.replaceAll(/[^,:[{]/g, "").length > jsonValuesMax;
    assert.equal(hasTooManyValues(Buffer.from(text)), expected);
    outcomes.add(expected);
  }
  assert.equal(outcomes.size, 2);
});
