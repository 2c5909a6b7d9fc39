/** One example of every frame, in a file that the gateway's tests read too, so that both sides agree on every byte. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";
import { mutations, randomOf } from "../../test/relay/mutations.ts";
import { encodeFrame, FrameParser, FrameType } from "../agent/frames.ts";
import { decodeCount, decodeEmpty, decodeTotal, emptyRecord, endRecord, windowRecord } from "../agent/protocol.ts";
import { ProtocolError, RecordWriter } from "../agent/records.ts";
import { rangeOf } from "../network/destinations.ts";
import { answerRecord, decodeGatewayWelcome, decodeOpen, failRecord, helloRecord, openedEvent } from "./records.ts";

const { HELLO, WELCOME, OPEN, DATA, END, WINDOW, EVENT, RESULT, FAIL, RESET } = FrameType;
const epoch = 0xb70c;
const nonce = Buffer.from("a0a1a2a3a4a5a6a7a8a9aaabacadaeaf", "hex");
const page = readFileSync(new URL("../../guest/agent/golden/net-frames.txt", import.meta.url), "utf8");
const golden = new Map(
  page
    .split("\n")
    .filter((line) => line !== "" && !line.startsWith("#"))
    .map((line) => line.split(": ") as [name: string, hex: string])
    .map(([name, hex]) => [name, Buffer.from(hex, "hex")]),
);
const frame = (type: number, stream: number, payload: Uint8Array) =>
  encodeFrame({ type, flags: 0, epoch, stream }, payload);
const address = (text: string) => rangeOf(text)!.first;
const bytesOf = (text: string) => Buffer.from(text.split(".").map(Number));

const records = [
  { type: 1, ttlSec: 300, data: bytesOf("93.184.216.34") },
  { type: 1, ttlSec: 60, data: bytesOf("93.184.216.35") },
];

/** Frames of the relay. */
const encoded: Record<string, Buffer> = {
  hello: frame(HELLO, 0, helloRecord(nonce)),
  opened: frame(EVENT, 7, openedEvent),
  data: frame(DATA, 7, Buffer.from("hello")),
  end: frame(END, 7, endRecord(5)),
  window: frame(WINDOW, 7, windowRecord(65_536)),
  reset: frame(RESET, 7, emptyRecord),
  fail_refused: frame(FAIL, 9, failRecord("refused", "nobody listens")),
  fail_denied: frame(FAIL, 10, failRecord("denied", "not listed")),
  fail_unreachable: frame(FAIL, 11, failRecord("unreachable", "no route")),
  fail_timeout: frame(FAIL, 12, failRecord("timeout", "no answer")),
  answers: frame(RESULT, 8, answerRecord({ rcode: 0, records })),
  no_answers: frame(RESULT, 14, answerRecord({ rcode: 3, records: [] })),
};

type Decode = (payload: Buffer) => unknown;
const welcome: Decode = (payload) => decodeGatewayWelcome(payload, nonce);

/** Frames of the gateway: type, stream, and the decoded payload. */
const decoded: Record<string, [type: number, stream: number, decode: Decode, value: unknown]> = {
  welcome: [WELCOME, 0, welcome, { version: 1, gateway: "capsule-gateway/0.1.0" }],
  connect: [OPEN, 7, decodeOpen, { kind: "connect", address: address("93.184.216.34"), port: 443 }],
  data: [DATA, 7, (payload) => payload.toString(), "hello"],
  end: [END, 7, decodeTotal, 5],
  window: [WINDOW, 7, decodeCount, 65_536],
  reset: [RESET, 7, decodeEmpty, undefined],
  resolve: [OPEN, 8, decodeOpen, { kind: "resolve", name: "example.com", type: 1 }],
  resolve_root: [OPEN, 14, decodeOpen, { kind: "resolve", name: "", type: 2 }],
};

describe("golden frames", () => {
  for (const [name, bytes] of golden) {
    test(name, () => {
      const [type, stream, decode, value] = decoded[name] ?? [];
      assert.ok(encoded[name] || decode, "a frame that this side does not know");
      if (encoded[name]) assert.equal(encoded[name].toString("hex"), bytes.toString("hex"));
      let seen = 0;
      const parser = new FrameParser((ofType, flags, ofEpoch, ofStream, payload) => {
        seen++;
        assert.deepEqual([ofEpoch, flags], [epoch, 0]);
        if (!decode) return;
        assert.deepEqual([ofType, ofStream], [type, stream]);
        assert.deepEqual(decode(payload), value);
      });
      parser.push(bytes);
      assert.equal(seen, 1);
    });
  }

  test("cover every frame this side knows", () => {
    const known = new Set([...Object.keys(encoded), ...Object.keys(decoded)]);
    assert.deepEqual([...golden.keys()].sort(), [...known].sort());
  });
});

describe("an OPEN that is malformed", () => {
  const cases: Record<string, RecordWriter> = {
    "of another verb": new RecordWriter().u16(49).u16(80),
    "to port 0": new RecordWriter().u16(51).u32(1).u16(0),
    "that is short": new RecordWriter().u16(51).u32(1),
    "that is long": new RecordWriter().u16(51).u32(1).u16(80).u8(0),
    "for a name of 1 001 bytes": new RecordWriter().u16(52).str("a".repeat(1_001)).u16(1),
  };
  for (const [name, record] of Object.entries(cases))
    test(name, () => assert.throws(() => decodeOpen(record.finish()), ProtocolError));
});

test("whatever the bytes, frames and their records are values within bounds, or a ProtocolError", (t) => {
  const { random, seed } = randomOf();
  t.diagnostic(`seed ${seed}`);
  const check = (type: number, payload: Buffer) => {
    if (type === WELCOME) assert.ok(decodeGatewayWelcome(payload, nonce).gateway.length <= 100);
    if (type !== OPEN) return;
    const asked = decodeOpen(payload);
    if (asked.kind === "resolve") assert.ok(asked.name.length <= 1_000);
    else assert.ok(asked.port >= 1 && asked.port <= 65_535 && asked.address < 2 ** 32);
  };
  const frames = [...golden].filter(([name]) => name in decoded).map(([, bytes]) => bytes);
  for (const bytes of mutations(frames, random)) {
    const parser = new FrameParser((type, _flags, _epoch, _stream, payload) => check(type, payload));
    try {
      parser.push(bytes);
    } catch (error) {
      assert.ok(error instanceof ProtocolError, `seed ${seed}, ${bytes.toString("hex")}: ${error}`);
    }
  }
});
