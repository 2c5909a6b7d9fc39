import assert from "node:assert/strict";
import { test } from "node:test";
import { credentialsOf, withoutCredentials } from "./port-credentials.ts";

const key = `capk_${"0".repeat(48)}`;

test("all four credentials are found, in every line and spelling", () => {
  const headers = [
    ...[
      "X-API-Key",
      "k1",
      "x-api-KEY",
      "k2",
      "X-Capsule-Token",
      "t1",
      "Cookie",
      "a=1; capsule_token=t4",
      "cookie",
      "capsule_token=t5",
    ],
    ...["Authorization", `Bearer ${key}`],
  ];
  assert.deepEqual(credentialsOf({ path: "/?capsule_token=t2&x&capsule%5ftoken=t%33", headers }), {
    keys: ["k1", "k2"],
    tokens: ["t1", "t2", "t3", "t4", "t5"],
    queryTokens: ["t2", "t3"],
    authorizationKeys: [key],
  });
  const none = { keys: [], tokens: [], queryTokens: [], authorizationKeys: [] };
  const other = ["Cookie", "xcapsule_token=1; CAPSULE_TOKEN=2", "Authorization", "Bearer other", "X-Token", "3"];
  assert.deepEqual(credentialsOf({ path: "/capsule_token=1?xcapsule_token=1", headers: other }), none);
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
