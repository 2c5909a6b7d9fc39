/** The operator's grants and reserved ranges: how they are read, and which entries of `allow` they open. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { rangeOf } from "./destinations.ts";
import { effectivePolicy } from "./effective.ts";
import { type NetworkRules, parseGrants, parseRanges, strictRules } from "./grants.ts";
import { noNetwork, parseNetwork } from "./policy.ts";

const limits = { network_entries_max: 256, public_ports_max: 32 };

function rules(grants: string, deny = ""): NetworkRules {
  return { ...strictRules, grants: parseGrants(grants), deny: parseRanges(deny) };
}

function isTaken(entry: string, under: NetworkRules): boolean {
  try {
    return parseNetwork({ allow: [entry] }, limits, under).allow.length === 1;
  } catch (error) {
    assert.equal((error as { code: string }).code, "forbidden", entry);
    return false;
  }
}

describe("settings", () => {
  test("are lists by comma, and none where they are empty", () => {
    assert.deepEqual(parseGrants(""), []);
    assert.deepEqual(
      parseGrants("10.1.0.0/16:5432, host:11434,10.0.0.1").map(({ text, port }) => [text, port]),
      [
        ["10.1.0.0/16:5432", 5_432],
        ["host:11434", 11_434],
        ["10.0.0.1", undefined],
      ],
    );
    assert.deepEqual(parseRanges("5.6.7.0/24, 9.9.9.9"), ["5.6.7.0/24", "9.9.9.9"]);
  });

  for (const bad of ["host", "host:", "host:0", "host:80:80", "example.com", "10.0.0.0/33", "::1", "10.0.0.1:x", ","]) {
    test(`the grant ${bad} is none`, () => assert.throws(() => parseGrants(bad), /^Error: must be ranges .* is none$/));
  }

  for (const bad of ["10.0.0.0/8:80", "example.com", "10.0.0/8", "::/0", "1.1.1.1,,2.2.2.2"]) {
    test(`the range ${bad} is none`, () => assert.throws(() => parseRanges(bad), /^Error: must be IPv4 .* is none$/));
  }
});

describe("a grant", () => {
  const cases: [grants: string, taken: string[], refused: string[]][] = [
    [
      "10.1.0.0/16:5432",
      ["10.1.0.0/16:5432", "10.1.2.3:5432"],
      ["10.1.2.3", "10.1.2.3:80", "10.0.0.0/8:5432", "10.2.0.1:5432"],
    ],
    ["10.1.0.0/16", ["10.1.2.3", "10.1.2.3:80", "10.1.0.0/16"], ["10.1.2.3:25", "10.0.0.0/8", "host.capsule.internal"]],
    [
      "host:11434",
      ["host.capsule.internal:11434"],
      ["host.capsule.internal", "host.capsule.internal:80", "127.0.0.1:11434"],
    ],
    ["host:80,host:443", ["host.capsule.internal"], ["host.capsule.internal:25"]],
    ["10.0.0.5:25", ["10.0.0.5:25", "mail.example:25"], ["10.0.0.6:25", "1.1.1.1:25", "host.capsule.internal:25"]],
    ["1.1.1.1:25", ["1.1.1.1:25"], ["0.0.0.0/0:25", "10.0.0.1"]],
    ["", ["1.1.1.1", "0.0.0.0/0"], ["10.1.2.3", "host.capsule.internal:80", "mail.example:25"]],
  ];
  for (const [grants, taken, refused] of cases) {
    test(`${grants || "none"} opens what lies within it`, () => {
      for (const entry of taken) assert.ok(isTaken(entry, rules(grants)), entry);
      for (const entry of refused) assert.ok(!isTaken(entry, rules(grants)), entry);
    });
  }

  test("opens a range that the operator has reserved, too", () => {
    assert.ok(!isTaken("5.6.7.8:443", rules("", "5.6.7.0/24")));
    assert.ok(!isTaken("5.6.7.0/25", rules("", "5.6.7.0/24")));
    assert.ok(isTaken("5.6.0.0/16", rules("", "5.6.7.0/24")), "a wider one");
    assert.ok(isTaken("5.6.7.8:443", rules("5.6.7.8:443", "5.6.7.0/24")));
  });

  test("opens an address of this machine, which is reserved for as long as an interface has it", () => {
    const own = [rangeOf("5.6.7.8")!];
    const under = (grants: string): NetworkRules => ({ ...rules(grants), ownRanges: () => own });
    for (const entry of ["5.6.7.8", "5.6.7.8:443"]) assert.ok(!isTaken(entry, under("")), entry);
    assert.ok(isTaken("5.6.7.0/24", under("")), "a wider one");
    assert.ok(isTaken("5.6.7.8:443", under("5.6.7.8:443")));
    const policy = { ...noNetwork, egress: "allowlist", allow: ["5.6.7.8:443"] } as const;
    const effective = () => effectivePolicy({ ...policy, allow: [...policy.allow] }, under("")).allow;
    assert.deepEqual(effective(), []);
    own.pop();
    assert.deepEqual(effective(), ["5.6.7.8:443"]);
  });
});

describe("the effective policy", () => {
  const asked = { ...noNetwork, egress: "public", allow: ["pypi.org", "10.1.2.3:5432"], deny: ["1.1.1.1"] } as const;
  const policy = { ...asked, allow: [...asked.allow], deny: [...asked.deny] };

  test("is at most the ceiling", () => {
    const granted = rules("10.1.0.0/16:5432");
    const { allow, deny } = policy;
    assert.deepEqual(effectivePolicy(policy, granted), { egress: "public", allow, deny });
    assert.deepEqual(effectivePolicy(policy, { ...granted, ceiling: "allowlist" }), {
      egress: "allowlist",
      allow,
      deny,
    });
    assert.deepEqual(effectivePolicy(policy, { ...granted, ceiling: "none" }), { egress: "none", allow: [], deny });
    const listed = { ...policy, egress: "allowlist" } as const;
    assert.equal(effectivePolicy(listed, granted).egress, "allowlist", "a higher ceiling raises nothing");
    assert.deepEqual(effectivePolicy({ ...listed, egress: "none" }, granted).allow, []);
  });

  test("has no entry whose grant was taken back", () => {
    assert.deepEqual(effectivePolicy(policy, strictRules).allow, ["pypi.org"]);
  });

  test("of a policy that cannot be read is nothing", () => {
    assert.deepEqual(effectivePolicy(undefined, strictRules), { egress: "none", allow: [], deny: [] });
  });
});

test("a policy that names no egress has the operator's default", () => {
  const open: NetworkRules = { ...strictRules, egress: "public" };
  assert.equal(parseNetwork({}, limits, open).egress, "public");
  assert.equal(parseNetwork({ egress: null }, limits, open).egress, "public");
  assert.equal(parseNetwork({ egress: "none" }, limits, open).egress, "none");
});
