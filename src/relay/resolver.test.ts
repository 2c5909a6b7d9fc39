/** Questions to a DNS server on loopback: which are asked, what the answers become, and failures. */
import assert from "node:assert/strict";
import { createSocket } from "node:dgram";
import { once } from "node:events";
import { describe, test } from "node:test";
import { nameData, recordTypes } from "./dns-records.ts";
import { HostResolver } from "./resolver.ts";

interface Reply {
  rcode?: number;
  records?: { type: number; ttl: number; data: Buffer }[];
  isSilent?: boolean;
}

/** A server that gives one reply to every question. */
async function server(reply: Reply) {
  const socket = createSocket("udp4");
  const asked: number[] = [];
  socket.on("message", (question, { port, address }) => {
    const end = question.indexOf(0, 12) + 5;
    asked.push(question.readUInt16BE(end - 4));
    if (reply.isSilent) return;
    const head = Buffer.alloc(12);
    question.copy(head, 0, 0, 2);
    const { records = [], rcode = 0 } = reply;
    for (const [index, value] of [0x8180 | rcode, 1, records.length].entries())
      head.writeUInt16BE(value, 2 + 2 * index);
    const encoded = records.map(({ type, ttl, data }) => {
      const fields = Buffer.alloc(10);
      fields.writeUInt16BE(type, 0);
      fields.writeUInt16BE(1, 2);
      fields.writeUInt32BE(ttl, 4);
      fields.writeUInt16BE(data.length, 8);
      return Buffer.concat([Buffer.from([0xc0, 12]), fields, data]);
    });
    socket.send(Buffer.concat([head, question.subarray(12, end), ...encoded]), port, address);
  });
  await once(socket.bind(0, "127.0.0.1"), "listening");
  const tryMs = reply.isSilent ? 200 : 60_000; // a busy machine asks once
  const resolver = new HostResolver([`127.0.0.1:${socket.address().port}`], tryMs);
  return { resolver, asked, [Symbol.dispose]: () => socket.close() };
}

const name = nameData("b.example")!;
const bytes = (...values: (number | Buffer)[]) =>
  Buffer.concat(values.map((value) => (typeof value === "number" ? Buffer.from([value]) : value)));
const soa = bytes(name, name, Buffer.alloc(20, 1));

describe("an answer", () => {
  test("of addresses has the resolver's TTL", async () => {
    const data = Buffer.from([9, 9, 9, 9]);
    using dns = await server({
      records: [
        { type: 1, ttl: 77, data },
        { type: 1, ttl: 0, data },
      ],
    });
    const found = [
      { address: 0x09090909, ttlSec: 77 },
      { address: 0x09090909, ttlSec: 0 },
    ];
    assert.deepEqual(await dns.resolver.addresses("a.example"), { found });
  });

  const others: [type: Exclude<keyof typeof recordTypes, "A">, data: Buffer][] = [
    ["NS", name],
    ["CNAME", name],
    ["PTR", name],
    ["MX", bytes(0, 10, name)],
    ["TXT", bytes(2, Buffer.from("ab"), 1, Buffer.from([0xe9]))],
    ["SRV", bytes(0, 1, 0, 2, 0, 80, name)],
    ["SOA", soa],
    ["CAA", bytes(0, 5, Buffer.from("issueca.example"))],
  ];
  for (const [type, data] of others) {
    test(`of ${type} has the same RDATA, and a TTL of 0`, async () => {
      using dns = await server({ records: [{ type: recordTypes[type], ttl: 300, data }] });
      const found = await dns.resolver.records("a.example", type);
      assert.ok("found" in found);
      assert.deepEqual(
        found.found.map((record) => ({ ...record, data: Buffer.from(record.data).toString("hex") })),
        [{ type: recordTypes[type], ttlSec: 0, data: data.toString("hex") }],
      );
      assert.deepEqual(dns.asked, [recordTypes[type]]);
    });
  }
});

describe("a failure", () => {
  const cases: [reply: Reply, failure: string][] = [
    [{ rcode: 3 }, "no such name"],
    [{}, "none"],
    [{ rcode: 2 }, "failed"],
    [{ rcode: 5 }, "failed"],
    [{ isSilent: true }, "failed"],
  ];
  for (const [reply, failure] of cases) {
    test(`${JSON.stringify(reply)}: ${failure}`, async () => {
      using dns = await server(reply);
      assert.deepEqual(await dns.resolver.addresses("a.example"), { failure });
      assert.ok(dns.asked.every((type) => type === 1));
    });
  }
});
