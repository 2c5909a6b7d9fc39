/** Decisions against a second, shorter statement of the rules, on random policies; and the rules one by one. */
import assert from "node:assert/strict";
import { BlockList } from "node:net";
import { describe, test } from "node:test";
import fc from "fast-check";
import type { Egress } from "../wire/network.ts";
import { decide, isListedName, listedNames, mayAnswer, mayAsk, type OperatorRules, rulesOf } from "./decision.ts";
import { addressText, rangeOf } from "./destinations.ts";
import { parseGrants } from "./grants.ts";

const numberOf = (text: string) => rangeOf(text)!.first;
const operatorOf = (reserved: string[], grants: string[]): OperatorRules => ({
  reserved: reserved.map((text) => rangeOf(text)!),
  grants: parseGrants(grants.join(",")),
});

interface Case {
  egress: Egress;
  allow: string[];
  deny: string[];
  reserved: string[];
  grants: string[];
  address: string;
  port: number;
}

const fixed =
  "0/8 10/8 100.64/10 127/8 169.254/16 172.16/12 192.0.0/24 192.0.2/24 192.88.99/24 192.168/16 198.18/15 198.51.100/24 203.0.113/24 224/3";

/** Whether all of `inner` is in `outer`, both with a port or without. */
function inside(inner: string, outer: string): boolean {
  const [[address = "", innerPort], [range = "", outerPort]] = [inner.split(":"), outer.split(":")];
  const [[base = "", bits = "32"], [first = "", width = "32"]] = [address.split("/"), range.split("/")];
  const list = new BlockList();
  list.addSubnet([...first.split("."), "0", "0", "0"].slice(0, 4).join("."), Number(width));
  return Number(bits) >= Number(width) && list.check(base) && (outerPort === undefined || outerPort === innerPort);
}

/** The rules in the words of the design, on texts. */
function model({ egress, allow, deny, reserved, grants, address, port }: Case): string {
  const at = `${address}:${port}`;
  const dialled = address === "192.0.0.1" ? "127.0.0.1" : address;
  const ranges = [...fixed.split(" "), ...reserved];
  const isShut = (entry: string) => entry.endsWith(":25") || ranges.some((range) => inside(entry, range));
  const isDomain = (entry: string) => /[a-z]/.test(entry);
  const names = (entry: string) => (entry.includes(":") ? entry.endsWith(`:${port}`) : port === 80 || port === 443);
  const addresses = allow.filter((entry) => !isDomain(entry));
  const isGranted =
    address !== "192.0.0.1" && grants.some((g) => !isDomain(g) && inside(at, g) && (port !== 25 || g.endsWith(":25")));
  const isOpened =
    address === "192.0.0.1"
      ? grants.includes(`host:${port}`) && allow.some((e) => e.startsWith("host.capsule.internal") && names(e))
      : addresses.some((entry) => isShut(entry) && inside(at, entry)) && isGranted;
  const isMail = port === 25 && allow.some((e) => isDomain(e) && names(e)) && isGranted;
  if (egress === "none") return "egress none";
  if (isShut(at) && !isOpened && !isMail) return "reserved";
  if (deny.some((entry) => inside(at, entry) || inside(`${dialled}:${port}`, entry))) return "deny";
  if (isShut(at) && !isOpened) return "named";
  if (isShut(at) || egress === "public" || addresses.some((entry) => inside(at, entry))) return `dial ${dialled}`;
  if (!allow.some((entry) => isDomain(entry) && names(entry))) return "not listed";
  return port === 80 || port === 443 ? "read" : "named";
}

const port = fc.constantFrom(80, 443, 25, 5432, 22);
const suffix = fc.option(port, { nil: undefined }).map((each) => (each === undefined ? "" : `:${each}`));
const address = fc.constantFrom(
  ...[
    "10.1.0.5",
    "10.2.0.5",
    "127.0.0.1",
    "192.0.0.1",
    "192.0.0.2",
    "9.9.9.9",
    "8.8.8.8",
    "8.8.4.4",
    "169.254.169.254",
  ],
  ...["203.0.114.1", "223.255.255.255", "224.0.0.1", "172.31.0.1", "172.32.0.1", "100.127.0.1", "100.128.0.1"],
);
const range = fc.oneof(
  address,
  fc.tuple(address, fc.constantFrom(8, 15, 16, 24, 32)).map((parts) => parts.join("/")),
  fc.constant("0.0.0.0/0"),
);
const addressEntry = fc.tuple(range, suffix).map((parts) => parts.join(""));
const domain = fc.constantFrom("a.example", "*.a.example", "host.capsule.internal");
const entry = fc.oneof(
  addressEntry,
  addressEntry,
  fc.tuple(domain, suffix).map((parts) => parts.join("")),
);
const grant = fc.oneof(
  addressEntry,
  port.map((each) => `host:${each}`),
);
const cases = fc.record<Case>({
  egress: fc.constantFrom("none", "allowlist", "allowlist", "public"),
  allow: fc.array(entry, { maxLength: 5 }),
  deny: fc.array(addressEntry, { maxLength: 2 }),
  reserved: fc.array(
    range.filter((each) => each !== "0.0.0.0/0"),
    { maxLength: 2 },
  ),
  grants: fc.array(grant, { maxLength: 3 }),
  address,
  port,
});

test("every decision is the model's", () => {
  const seen = new Map<string, number>();
  fc.assert(
    fc.property(cases, (each) => {
      const operator = operatorOf(each.reserved, each.grants);
      const decision = decide(rulesOf(each), operator, numberOf(each.address), each.port);
      const text =
        decision.kind === "denied"
          ? decision.reason
          : decision.kind === "dial"
            ? `dial ${addressText(decision.address)}`
            : decision.kind;
      assert.equal(text, model(each));
      const kind = decision.kind === "dial" && decision.isGranted ? "granted" : text.split(" ")[0]!;
      seen.set(kind, (seen.get(kind) ?? 0) + 1);
    }),
    { numRuns: 30_000 },
  );
  for (const kind of ["egress", "reserved", "deny", "dial", "granted", "not", "read", "named"])
    assert.ok((seen.get(kind) ?? 0) > 20, `${kind}: ${seen.get(kind)}`);
});

const none = operatorOf([], []);
const list = (allow: string[], deny: string[] = []) => rulesOf({ egress: "allowlist", allow, deny });

test("a policy with a damaged entry of deny denies everything", () => {
  const rules = rulesOf({ egress: "public", allow: [], deny: ["::1"] });
  assert.deepEqual(decide(rules, none, numberOf("9.9.9.9"), 80), { kind: "denied", reason: "egress none" });
});

describe("names", () => {
  const rules = list(["a.example", "*.b.example:8443", "c.example:22", "1.1.1.1"]);
  const names: [name: string, port: number, listed: boolean][] = [
    ["a.example", 80, true],
    ["a.example", 443, true],
    ["a.example", 22, false],
    ["x.a.example", 80, false],
    ["b.example", 8443, false],
    ["x.b.example", 8443, true],
    ["x.y.b.example", 8443, true],
    ["x.b.example", 443, false],
    ["xb.example", 8443, false],
    ["c.example", 22, true],
    ["1.1.1.1", 80, false],
  ];
  for (const [name, port, listed] of names)
    test(`${name}:${port}`, () => assert.equal(isListedName(rules, name, port), listed));

  test("a question is asked for a name that is listed for any port", () => {
    assert.deepEqual(
      ["c.example", "x.b.example", "d.example", "1.1.1.1"].map((name) => mayAsk(rules, name)),
      [...[true, true, false, false]],
    );
    assert.equal(mayAsk(rulesOf({ egress: "none", allow: ["a.example"], deny: [] }), "a.example"), false);
    assert.equal(mayAsk(rulesOf({ egress: "public", allow: [], deny: [] }), "a.example"), true);
  });

  test("names to resolve for a port have no wildcard", () => {
    assert.deepEqual(
      [22, 8443, 80].map((port) => listedNames(rules, port)),
      [["c.example"], [], ["a.example"]],
    );
  });
});

test("an answer keeps an address of which some port may be reached", () => {
  const operator = operatorOf(["9.9.9.0/24"], ["10.1.0.0/16:5432", "host:80"]);
  const rules = list(["10.1.0.0/24:5432", "host.capsule.internal"], ["8.8.8.8", "8.8.4.4:53"]);
  const answered = ["10.1.0.5", "10.1.1.5", "9.9.9.9", "8.8.8.8", "8.8.4.4", "1.1.1.1", "192.0.0.1", "127.0.0.1"];
  assert.deepEqual(
    answered.filter((each) => mayAnswer(rules, operator, numberOf(each))),
    ["10.1.0.5", "8.8.4.4", "1.1.1.1"],
  );
});
