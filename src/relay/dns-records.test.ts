/** RDATA against bytes written down by hand from the RFCs. */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { dataOf, nameData, type RecordType } from "./dns-records.ts";

const example = "076578616d706c6503636f6d00";
const cases: [type: RecordType, value: unknown, hex: string][] = [
  ["A", "93.184.216.34", "5db8d822"],
  ["NS", "example.com", example],
  ["CNAME", "example.com", example],
  ["PTR", "example.com", example],
  ["MX", { priority: 10, exchange: "example.com" }, `000a${example}`],
  ["MX", { priority: 0, exchange: "" }, "000000"],
  ["SRV", { priority: 1, weight: 258, port: 5432, name: "example.com" }, `0001010215 38${example}`.replace(" ", "")],
  [
    "SOA",
    {
      ...{ nsname: "example.com", hostmaster: "a.b", serial: 4_294_967_295 },
      ...{ refresh: 1, retry: 2, expire: 3, minttl: 256 },
    },
    `${example}0161016200ffffffff00000001000000020000000300000100`,
  ],
  ["TXT", ["v=1", "é"], "03763d3101e9"],
  ["TXT", [""], "00"],
  ["CAA", { critical: 0, issue: "ca.example" }, "00056973737565" + "63612e6578616d706c65"],
  ["CAA", { critical: 128, iodef: "mailto:a" }, "8005696f646566" + "6d61696c746f3a61"],
];

describe("RDATA", () => {
  for (const [type, value, hex] of cases)
    test(`${type} ${JSON.stringify(value)}`, () =>
      assert.deepEqual(
        dataOf(type, [value]).map((data) => data.toString("hex")),
        [hex],
      ));

  test("what does not fit into a record is left out", () => {
    const long = "a".repeat(64);
    assert.deepEqual(dataOf("NS", [`${long}.com`, "a..b", `${"a.".repeat(128)}b`, "Ā.b", "\\256.b"]), []);
    assert.deepEqual(dataOf("TXT", [["x".repeat(256)]]), []);
    assert.deepEqual(dataOf("CAA", [{ critical: 0 }]), []);
    assert.deepEqual(dataOf("MX", [{ priority: 1, exchange: ".." }]), []);
  });
});

describe("a name", () => {
  const names: [name: string, hex: string][] = [
    ["", "00"],
    [".", "00"],
    ["example.com.", example],
    ["a\\.b.c", "03612e62016300"],
    ["\\032\\\\.c", "02205c016300"],
    ["é.c", "01e9016300"],
  ];
  for (const [name, hex] of names) test(JSON.stringify(name), () => assert.equal(nameData(name)?.toString("hex"), hex));
});
