/** Values of `network` that are taken, and those that are refused, each with its field. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import type { CapsuleError } from "../wire/errors.ts";
import { decodePolicy, encodePolicy, noNetwork, parseNetwork } from "./policy.ts";

const limits = { network_entries_max: 256, public_ports_max: 32 };
const parse = (value: unknown) => parseNetwork(value, limits);

/** Code and field of the refusal. */
function refusalOf(value: unknown): [code: string, field: unknown] {
  try {
    parse(value);
  } catch (error) {
    const { code, details } = error as CapsuleError;
    return [code, details?.field];
  }
  assert.fail(`${JSON.stringify(value).slice(0, 200)} was taken`);
}

describe("a network that is taken", () => {
  test("what is left out, null or unknown is the default", () => {
    assert.deepEqual(parse({}), noNetwork);
    const nulls = { egress: null, allow: null, deny: null, public_ports: null, host_header: null, inject: null };
    assert.deepEqual(parse({ ...nulls, more: 1, inject: [] }), noNetwork);
  });

  test("every field is kept", () => {
    const given = { egress: "allowlist", allow: ["pypi.org"], deny: ["1.2.3.4"], public_ports: [80], host_header: "a" };
    const { public_ports: publicPorts, host_header: hostHeader, ...rest } = given;
    assert.deepEqual(parse(given), { ...rest, publicPorts, hostHeader, inject: [] });
  });

  const entries: [entry: string, kept: string][] = [
    ["PyPI.org.", "pypi.org"],
    ["pypi.org:443", "pypi.org:443"],
    ["pypi.org.:443", "pypi.org:443"],
    ["*.Example.COM", "*.example.com"],
    ["*.example.com:8443", "*.example.com:8443"],
    ["bücher.example", "xn--bcher-kva.example"],
    ["*.BÜCHER。example:80", "*.xn--bcher-kva.example:80"],
    ["_dmarc.a-b.example", "_dmarc.a-b.example"],
    ["registry", "registry"],
    [`${"a".repeat(63)}.example`, `${"a".repeat(63)}.example`],
    [`${"a.".repeat(123)}example`, `${"a.".repeat(123)}example`],
    ["1.1.1.1", "1.1.1.1"],
    ["1.1.1.1:65535", "1.1.1.1:65535"],
    ["8.8.8.0/24", "8.8.8.0/24"],
    ["8.8.8.8/24:53", "8.8.8.8/24:53"],
    ["0.0.0.0/0", "0.0.0.0/0"],
    ["0.0.0.0/7", "0.0.0.0/7"],
    ["172.0.0.0/8", "172.0.0.0/8"],
    ["192.0.0.0/22", "192.0.0.0/22"],
  ];
  for (const [entry, kept] of entries) {
    test(`allow ${entry.slice(0, 40)}`, () => {
      assert.deepEqual(parse({ allow: [entry] }).allow, [kept]);
    });
  }

  test("reserved addresses may be denied, and so may all", () => {
    const deny = ["10.0.0.0/8", "127.0.0.1:80", "0.0.0.0/0", "169.254.169.254"];
    assert.deepEqual(parse({ deny }).deny, deny);
  });

  for (const host of [
    "localhost",
    "localhost:{port}",
    "{port}.app.example",
    "127.0.0.1:80",
    "[::1]:{port}",
    "A_b.c-d",
  ]) {
    test(`the Host ${host}`, () => assert.equal(parse({ host_header: host }).hostHeader, host));
  }
});

describe("a network that is refused", () => {
  for (const value of [null, [], "none", 1, true]) {
    test(`${JSON.stringify(value)} is no object`, () => {
      assert.deepEqual(refusalOf(value), ["invalid_request", "network"]);
    });
  }

  const fields: [value: object, field: string][] = [
    [{ egress: "all" }, "network.egress"],
    [{ egress: ["none"] }, "network.egress"],
    [{ allow: "pypi.org" }, "network.allow"],
    [{ allow: { 0: "pypi.org" } }, "network.allow"],
    [{ allow: ["pypi.org", 5] }, "network.allow[1]"],
    [{ allow: ["a", "b", "c", null] }, "network.allow[3]"],
    [{ deny: ["1.1.1.1", "pypi.org"] }, "network.deny[1]"],
    [{ deny: ["*.pypi.org"] }, "network.deny[0]"],
    [{ allow: Array(257).fill("a") }, "network.allow"],
    [{ deny: Array(257).fill("1.1.1.1") }, "network.deny"],
    [{ public_ports: 80 }, "network.public_ports"],
    [{ public_ports: Array(33).fill(80) }, "network.public_ports"],
    ...[0, -1, 65_536, 1.5, "80", null, Number.NaN].map((port): [object, string] => [
      { public_ports: [80, port] },
      "network.public_ports[1]",
    ]),
    ...["", " ", "a b", "a\r\nb", "a/b", "a:0", "a:", ":80", "a:123456", "é", "{host}", "a".repeat(256), 5, []].map(
      (host): [object, string] => [{ host_header: host }, "network.host_header"],
    ),
  ];
  for (const [value, field] of fields) {
    test(`${JSON.stringify(value).slice(0, 60)}: ${field}`, () => {
      assert.deepEqual(refusalOf(value), ["invalid_request", field]);
    });
  }

  const odd = [
    ...[
      "",
      ".",
      "*",
      "*.",
      "*.*.a",
      "a.*.b",
      "*a.b",
      "a..b",
      ".a",
      "a b",
      " a",
      "a ",
      "a\n",
      "a\0b",
      "a@b",
      "a,b",
      "a%41.b",
    ],
    ...[
      "https://a.example",
      "a.example/b",
      "a/8",
      "a.example:",
      "a.example:0",
      "a.example:080",
      "a.example:65536",
      "a:b",
    ],
    ...[
      "a.example:80:80",
      "a:-1",
      ":80",
      "1.1.1.1:",
      "1.1.1.1:0",
      "1.1.1.1/33",
      "1.1.1.1/",
      "1.1.1.1/08",
      "1.1.1.1/8/8",
    ],
    ...[
      "1.1.1",
      "1.1.1.1.1",
      "01.1.1.1",
      "256.1.1.1",
      "1.1.1.-1",
      "16843009",
      "0x01010101",
      "0x1.1",
      "1.1.1.0x1",
      "a.1",
      "*.1.1.1.1",
    ],
    ...[
      "::1",
      "[::1]",
      "[::1]:80",
      "2606:4700:4700::1111",
      "::ffff:1.1.1.1",
      "fe80::1%eth0",
      "１.１.１.１",
      "a.１２７",
    ],
    ...[
      `${"a".repeat(64)}.example`,
      `${"a.".repeat(124)}example`,
      "a".repeat(1_000_000),
      "ü".repeat(1_000),
      "a/0.0.0.0",
      "1.1.1.1-2",
    ],
  ];
  for (const entry of odd) {
    test(`allow ${JSON.stringify(entry.slice(0, 40))}`, () => {
      assert.deepEqual(refusalOf({ allow: ["a", entry] }), ["invalid_request", "network.allow[1]"]);
    });
  }
});

describe("an entry of allow that is reserved", () => {
  const reserved = [
    ...[
      "0.0.0.0",
      "0.1.2.3/8",
      "10.0.0.1",
      "10.0.0.0/8",
      "100.64.0.0/10",
      "100.127.255.255",
      "127.0.0.1:8080",
      "169.254.169.254",
    ],
    ...[
      "172.16.0.0/12",
      "172.31.255.255",
      "192.0.0.1",
      "192.0.2.7",
      "192.88.99.0/24",
      "192.168.0.0/16:22",
      "198.18.0.0/15",
    ],
    ...["198.51.100.9", "203.0.113.0/25", "224.0.0.1", "240.0.0.0/4", "255.255.255.255", "224.0.0.0/3"],
    ...[
      "1.1.1.1:25",
      "0.0.0.0/0:25",
      "mail.example:25",
      "*.mail.example:25",
      "host.capsule.internal:11434",
      "Host.capsule.internal",
    ],
  ];
  for (const entry of reserved) {
    test(`${entry} is for the operator to grant`, () => {
      assert.deepEqual(refusalOf({ egress: "none", allow: ["a", entry] }), ["forbidden", "network.allow[1]"]);
      assert.throws(() => parse({ allow: [entry] }), /CAPSULE_EGRESS_GRANT/);
    });
  }

  const beside = [
    ...[
      "1.0.0.0",
      "9.255.255.255",
      "11.0.0.0",
      "100.63.255.255",
      "100.128.0.0",
      "126.255.255.255",
      "128.0.0.0",
      "169.253.0.0",
    ],
    ...[
      "169.255.0.0",
      "172.15.255.255",
      "172.32.0.0",
      "191.255.255.255",
      "192.0.1.0",
      "192.0.3.0",
      "192.88.98.255",
      "192.88.100.0",
    ],
    ...[
      "192.167.255.255",
      "192.169.0.0",
      "198.17.255.255",
      "198.20.0.0",
      "198.51.99.255",
      "198.51.101.0",
      "203.0.112.255",
    ],
    ...[
      "203.0.114.0",
      "223.255.255.255",
      "8.0.0.0/6",
      "224.0.0.0/2",
      "192.168.0.0/15",
      "capsule.internal",
      "localhost",
      "a.example:26",
    ],
  ];
  for (const entry of beside)
    test(`${entry} is taken`, () => assert.deepEqual(parse({ allow: [entry] }).allow, [entry]));

  test("an entry that is none is told first", () => {
    assert.deepEqual(refusalOf({ allow: ["10.0.0.1", "::1"] }), ["invalid_request", "network.allow[1]"]);
  });
});

describe("the text of a row", () => {
  test("holds what was parsed; that of a capsule that asked for nothing is null", () => {
    const policy = parse({ egress: "public", allow: ["a:1"], deny: ["1.1.1.1"], public_ports: [1], host_header: "b" });
    const ruled = { ...policy, inject: [{ host: "a.example", headers: ["X-Key"] }] };
    for (const each of [policy, ruled]) assert.deepEqual(decodePolicy(encodePolicy(each)), each);
    const { inject: _, ...before } = policy;
    assert.deepEqual(decodePolicy(JSON.stringify(before)), policy, "a row of a release without rules");
    assert.equal(encodePolicy(parse({})), null);
    assert.deepEqual(decodePolicy(null), noNetwork);
  });

  test("one that is damaged is no policy", () => {
    const good = JSON.parse(encodePolicy(parse({ public_ports: [80] }))!);
    const damaged = [
      ...["", "{", "null", "[]", "1", "{}"],
      ...[
        { egress: "all" },
        { allow: [1] },
        { deny: "a" },
        { publicPorts: ["80"] },
        { hostHeader: 5 },
        { inject: [{ host: "a" }] },
      ].map((part) => JSON.stringify({ ...good, ...part })),
    ];
    for (const text of damaged) assert.equal(decodePolicy(text), undefined, text);
  });
});
