import assert from "node:assert/strict";
import { test } from "node:test";
import { credentialsOf, withoutCredentials } from "./port-credentials.ts";

const key = `capk_${"0".repeat(48)}`;
const token = (end: number) => `${end}.${"A".repeat(43)}`;

test("all four credentials are found, in every line and spelling", () => {
  const headers = [
    ...[
      "X-API-Key",
      "k1",
      "x-api-KEY",
      "k2",
      "X-Capsule-Token",
      token(1),
      "Cookie",
      `a=1; capsule_token=${token(4)}`,
      "cookie",
      `capsule_token=${token(5)}`,
    ],
    ...["Authorization", `Bearer ${key}`],
  ];
  assert.deepEqual(
    credentialsOf({ path: `/?capsule_token=${token(2)}&x&capsule%5ftoken=%33${token(3).slice(1)}`, headers }),
    {
      keys: ["k1", "k2"],
      tokens: [token(1), token(2), token(3), token(4), token(5)],
      queryTokens: [token(2), token(3)],
      authorizationKeys: [key],
    },
  );
  const none = { keys: [], tokens: [], queryTokens: [], authorizationKeys: [] };
  const other = ["Cookie", "xcapsule_token=1; CAPSULE_TOKEN=2", "Authorization", "Bearer other", "X-Token", "3"];
  assert.deepEqual(credentialsOf({ path: "/capsule_token=1?xcapsule_token=1", headers: other }), none);
});

test("of many tokens those with the form of one are looked at, 16 of a kind", () => {
  const odd = Array.from({ length: 100 }, () => "capsule_token=x");
  const some = Array.from({ length: 20 }, (_, at) => `capsule_token=${token(at + 1)}`);
  const { tokens } = credentialsOf({ path: "/", headers: ["Cookie", [...odd, ...some].join("; ")] });
  assert.deepEqual(
    tokens,
    Array.from({ length: 16 }, (_, at) => token(at + 1)),
  );
  assert.equal(credentialsOf({ path: "/", headers: Array(9).fill(["X-API-Key", key]).flat() }).keys.length, 4);
});

test("a key in Authorization is found in every scheme", () => {
  const found = (value: string) => credentialsOf({ path: "/", headers: ["authorization", value] }).authorizationKeys;
  for (const value of [key, `bearer  ${key}`, `Token ${key}`, `Basic ${btoa(`me:${key}`)}`, `Basic ${btoa(`${key}:`)}`])
    assert.deepEqual(found(value), [key], value);
  for (const value of [
    `Basic\t${btoa(`me:${key}`)}`,
    `Negotiate, Basic ${btoa(key)}`,
    `Bearer ${btoa(key)}`,
    `x="${key}"`,
  ])
    assert.deepEqual(found(value), [key], value);
  for (const value of [`Bearer ${key}0`, "Basic !", "Basic", `Bearer ${key.slice(1)}`])
    assert.deepEqual(found(value), [], value);
});

test("the path keeps every other byte", () => {
  const cases = [
    ["/", "/"],
    ["/?", "/?"],
    ["/?capsule_token=x", "/"],
    ["/?capsule_token", "/"],
    ["/?a=%20&&b=+&capsule_token=x", "/?a=%20&&b=+"],
    ["//x/../y?capsule_token=x&a=1?2&capsule_token=y#z", "//x/../y?a=1?2"],
    ["/?%63apsule_token=x&%zz=1", "/?%zz=1"],
    ["/capsule_token=x", "/capsule_token=x"],
  ] as const;
  for (const [path, expected] of cases)
    assert.equal(withoutCredentials({ path, headers: [] }, false).path, expected, path);
});

test("the address of the page before keeps no token", () => {
  const referer = (value: string) => withoutCredentials({ path: "/", headers: ["Referer", value] }, false).headers[1];
  assert.equal(referer("http://80-a.localhost/x?a=1&capsule_token=t"), "http://80-a.localhost/x?a=1");
  assert.equal(referer("http://80-a.localhost/x"), "http://80-a.localhost/x");
});

test("headers keep their names, order and bytes without the credentials", () => {
  const headers = [
    ...["ACCEPT", " */*", "X-Api-Key", "k", "cookie", "a=1;b=2 ; capsule_token=x;  c=3", "X-CAPSULE-TOKEN", "t"],
    ...["Cookie", "capsule_token=x", "Cookie", "d=4", "Authorization", "Bearer y", "accept", "é"],
  ];
  const kept = (hides: boolean) => withoutCredentials({ path: "/", headers }, hides).headers;
  const expected = [
    "ACCEPT",
    " */*",
    "cookie",
    "a=1;b=2 ;  c=3",
    "Cookie",
    "d=4",
    "Authorization",
    "Bearer y",
    "accept",
    "é",
  ];
  assert.deepEqual(kept(false), expected);
  assert.deepEqual(kept(true), expected.toSpliced(6, 2));
});
