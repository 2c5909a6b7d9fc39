/** Names in ClientHellos: of real clients, cut in any way, and odd ones, which are refused. */
import assert from "node:assert/strict";
import { Duplex } from "node:stream";
import { describe, test } from "node:test";
import { connect } from "node:tls";
import { mutations, randomOf } from "../../test/relay/mutations.ts";
import { readClientHello } from "./client-hello.ts";

interface Hello {
  version?: number;
  session?: Buffer;
  suites?: Buffer;
  compressions?: Buffer;
  extensions?: Buffer[];
}

const u16 = (value: number) => Buffer.from([value >> 8, value & 255]);
const vector = (bytes: Buffer) => Buffer.concat([u16(bytes.length), bytes]);
const extension = (type: number, data: Buffer) => Buffer.concat([u16(type), vector(data)]);
const hostName = (name: string | Buffer, type = 0) => Buffer.concat([Buffer.from([type]), vector(Buffer.from(name))]);
const serverNames = (...names: Buffer[]) => extension(0, vector(Buffer.concat(names)));
const sni = (name: string) => serverNames(hostName(name));
/** supported_versions and a post-quantum key share of 1 216 bytes. */
const versions = extension(43, Buffer.from("0403040303", "hex"));
const keyShare = extension(51, vector(Buffer.concat([u16(0x11ec), vector(Buffer.alloc(1_216, 7))])));

function message({ version = 0x0303, session, suites, compressions, extensions = [] }: Hello): Buffer {
  const body = Buffer.concat([
    u16(version),
    Buffer.alloc(32, 1),
    Buffer.from([(session ?? Buffer.alloc(32)).length]),
    session ?? Buffer.alloc(32),
    vector(suites ?? Buffer.from("13011302", "hex")),
    compressions ?? Buffer.from([1, 0]),
    vector(Buffer.concat(extensions)),
  ]);
  return Buffer.concat([Buffer.from([1, body.length >> 16, (body.length >> 8) & 255, body.length & 255]), body]);
}

function record(bytes: Buffer, type = 22): Buffer {
  return Buffer.concat([Buffer.from([type, 3, 1]), vector(bytes)]);
}

const helloOf = (hello: Hello) => record(message(hello));
const good = helloOf({ extensions: [versions, sni("api.a.example"), keyShare] });

/** The first bytes that Node's own TLS client sends. */
async function nodeHello(servername: string): Promise<Buffer> {
  const { promise, resolve } = Promise.withResolvers<Buffer>();
  const socket = new Duplex({ read() {}, write: (chunk: Buffer) => resolve(chunk) });
  const client = connect({ socket, servername });
  client.on("error", () => {});
  const bytes = await promise;
  client.destroy();
  return bytes;
}

const isOdd = (bytes: Buffer) => "odd" in readClientHello(bytes);

test("the name of a real client's ClientHello, in lower case", async () => {
  assert.deepEqual(readClientHello(await nodeHello("API.a.example")), { name: "api.a.example" });
});

test("a post-quantum key share, whose ClientHello is longer than a packet", () => {
  assert.ok(good.length > 1_300);
  assert.deepEqual(readClientHello(good), { name: "api.a.example" });
});

test("bytes that come later do not matter, and each part before asks for more", () => {
  assert.deepEqual(readClientHello(Buffer.concat([good, Buffer.from("more")])), { name: "api.a.example" });
  for (let length = 0; length < good.length; length++) {
    const found = readClientHello(good.subarray(0, length));
    assert.ok("need" in found && found.need > length && found.need <= good.length, `${length}`);
  }
});

test("over several records", () => {
  const whole = message({ extensions: [sni("a.example")] });
  for (const sizes of [[1], [3], [4], [50], [1, 2, 1], Array<number>(60).fill(1)]) {
    const ends = [...sizes, whole.length].map((_, index) => sizes.slice(0, index + 1).reduce((a, b) => a + b, 0));
    ends[sizes.length] = whole.length;
    const bytes = Buffer.concat(ends.map((end, index) => record(whole.subarray(ends[index - 1] ?? 0, end))));
    assert.deepEqual(readClientHello(bytes), { name: "a.example" }, `${sizes}`);
    assert.ok("need" in readClientHello(bytes.subarray(0, -1)));
  }
});

test("a ClientHello of 16 KiB is read, one of 17 KiB refused at its first bytes", () => {
  const padded = (bytes: number) => helloOf({ extensions: [sni("a.example"), extension(21, Buffer.alloc(bytes))] });
  const most = 16_384 - padded(0).length;
  assert.deepEqual(readClientHello(padded(most)), { name: "a.example" });
  assert.ok(isOdd(padded(most + 1)));
  assert.ok(isOdd(padded(17 * 1_024)));
  assert.ok(isOdd(padded(17 * 1_024).subarray(0, 10)));
});

describe("an odd ClientHello is refused", () => {
  const whole = message({ extensions: [sni("a.example")] });
  const changed = (at: number, value: number) => Buffer.concat([good]).fill(value, at, at + 1);
  const cases: Record<string, Buffer> = {
    "without a server name": helloOf({ extensions: [versions] }),
    "without extensions": helloOf({}),
    "two extensions with a name": helloOf({ extensions: [sni("a.example"), sni("a.example")] }),
    "two extensions of another kind": helloOf({ extensions: [versions, sni("a.example"), versions] }),
    "two names": helloOf({ extensions: [serverNames(hostName("a.example"), hostName("b.example"))] }),
    "no name in the list": helloOf({ extensions: [serverNames()] }),
    "a name of another kind": helloOf({ extensions: [serverNames(hostName("a.example", 1))] }),
    "an empty name": helloOf({ extensions: [sni("")] }),
    "an address": helloOf({ extensions: [sni("9.9.9.9")] }),
    "an IPv6 address": helloOf({ extensions: [sni("::1")] }),
    "a number": helloOf({ extensions: [sni("0x7f000001")] }),
    "a dot at the end": helloOf({ extensions: [sni("a.example.")] }),
    "a port": helloOf({ extensions: [sni("a.example:443")] }),
    "a zero byte": helloOf({ extensions: [sni("a.example\0.b.example")] }),
    "a letter of two bytes": helloOf({ extensions: [sni("bücher.example")] }),
    "a byte after the list": helloOf({
      extensions: [extension(0, Buffer.concat([vector(hostName("a.example")), u16(0)]))],
    }),
    "a short list": helloOf({ extensions: [extension(0, Buffer.concat([u16(3), hostName("a.example")]))] }),
    "no suites": helloOf({ suites: Buffer.alloc(0), extensions: [sni("a.example")] }),
    "half a suite": helloOf({ suites: Buffer.alloc(3), extensions: [sni("a.example")] }),
    "a long session": helloOf({ session: Buffer.alloc(33), extensions: [sni("a.example")] }),
    "no compression": helloOf({ compressions: Buffer.from([0]), extensions: [sni("a.example")] }),
    "another version": helloOf({ version: 0x0200, extensions: [sni("a.example")] }),
    "bytes behind it": record(Buffer.concat([whole, Buffer.from([0])])),
    "a message behind it": record(Buffer.concat([whole, whole])),
    "a record of another type": Buffer.concat([record(whole.subarray(0, 20)), record(whole.subarray(20), 23)]),
    "an alert": record(Buffer.from([2, 40]), 21),
    "an empty record": Buffer.concat([record(Buffer.alloc(0)), record(whole)]),
    "more than 64 records": Buffer.concat([...whole.subarray(0, 70)].map((byte) => record(Buffer.from([byte])))),
    "a record of SSL 2": Buffer.from("802e0100020015000000100100800200800300800400800500800600", "hex"),
    "a record of a later protocol": changed(1, 4),
    "another message": changed(5, 2),
    "a version of no record": changed(2, 5),
  };
  for (const [name, bytes] of Object.entries(cases)) test(name, () => assert.ok(isOdd(bytes)));
});

test("whatever the bytes, the answer is a name that they hold, a refusal, or a need for more within 16 KiB", (t) => {
  const { random, seed } = randomOf();
  t.diagnostic(`seed ${seed}`);
  const seeds = [good, helloOf({ extensions: [sni("a.example")] }), helloOf({}), record(Buffer.from([1, 0, 0, 4]))];
  for (const bytes of mutations(seeds, random)) {
    const found = readClientHello(bytes);
    if ("name" in found) {
      assert.match(found.name, /^[a-z0-9_-]+(?:\.[a-z0-9_-]+)*$/);
      const payload = bytes.toString("latin1").toLowerCase();
      assert.ok(payload.includes(found.name) || bytes.filter((byte) => byte === 22).length > 1, `seed ${seed}`);
    } else if ("need" in found) assert.ok(found.need > bytes.length && found.need <= 16_384, `seed ${seed}`);
    else assert.ok(found.odd.length > 0);
  }
});
