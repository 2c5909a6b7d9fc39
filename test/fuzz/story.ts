/** What a guest says on one connection, word by word, and how a lie is made of a truth. */
import { FrameType, headerBytes, maxPayloadBytes, writeHeader } from "../../src/agent/frames.ts";
import { emptyRecord, endRecord, windowRecord } from "../../src/agent/protocol.ts";
import { RecordWriter } from "../../src/agent/records.ts";
import type { Random } from "../conformance/random.ts";

export interface Word {
  type: number;
  flags: number;
  stream: number;
  payload: Buffer;
  /** Added to the connection's epoch. */
  epochOff?: number;
  /** Added to the payload's length in the header. */
  lengthOff?: number;
  /** Sent before it. */
  padding?: number;
}

export type Story = readonly Word[];

const { DATA, END, WINDOW, EVENT, RESULT, FAIL, NOTICE } = FrameType;
const started = new RecordWriter().u32(7).str("proc-00000000").bare();
const startedEvent = new RecordWriter().u16(1).raw(started).finish();
const exited = new RecordWriter().u32(0).u8(0).u64(5n).finish();
const killed = new RecordWriter().u32(137).u8(9).u64(5n).finish();
const failed = new RecordWriter().str("not_found").str("no \u001b[31m such thing").finish();
const process = new RecordWriter().raw(started).str("x").strs(["y", "z"]).bare();
const entry = new RecordWriter()
  .str("n")
  .str("/n")
  .u8(2)
  .u64(5n)
  .u32(0o120777)
  .str("root")
  .str("root")
  .u64(0xffff_ffff_ffff_ffffn)
  .optionalStr("/target")
  .bare();

/** The streams that the fuzzed host opens (line.ts), by number. */
export const streams = {
  run: 1,
  probe: 2,
  start: 3,
  processes: 4,
  list: 5,
  mkdir: 6,
  read: 7,
  upload: 8,
  pty: 9,
  freeze: 10,
  attach: 11,
  cancelled: 12,
} as const;

const count = (items: number) => new RecordWriter().u32(items).finish();
const opened = (bytes: bigint) => new RecordWriter().u16(32).u64(bytes).finish();
const say = (stream: number, type: number, payload: Uint8Array, flags = 0): Word => ({
  type,
  flags,
  stream,
  payload: Buffer.from(payload),
});

/** What each stream may rightly hear. */
export const truths: Story = [
  say(streams.run, EVENT, startedEvent),
  say(streams.run, DATA, Buffer.alloc(5_000, "a"), 1),
  say(streams.run, DATA, Buffer.alloc(50, "b"), 2),
  say(streams.run, DATA, Buffer.alloc(65_536, "f"), 1),
  say(streams.run, RESULT, exited),
  say(streams.probe, RESULT, emptyRecord),
  say(streams.start, RESULT, Buffer.concat([started, emptyRecord])),
  say(streams.processes, DATA, process),
  say(streams.processes, DATA, process.subarray(0, 20)),
  say(streams.processes, DATA, process.subarray(20)),
  say(streams.processes, RESULT, count(2)),
  say(streams.list, DATA, entry),
  say(streams.list, RESULT, count(1)),
  say(streams.mkdir, RESULT, Buffer.concat([entry, emptyRecord])),
  say(streams.read, EVENT, opened(10n)),
  say(streams.read, DATA, Buffer.alloc(10, "c")),
  say(streams.read, END, endRecord(10)),
  say(streams.read, RESULT, emptyRecord),
  say(streams.upload, WINDOW, windowRecord(262_144)),
  say(streams.upload, RESULT, endRecord(300_000)),
  say(streams.pty, EVENT, startedEvent),
  say(streams.pty, DATA, Buffer.alloc(65_536, "d")),
  say(streams.pty, WINDOW, windowRecord(30_000)),
  say(streams.pty, RESULT, killed),
  say(streams.freeze, RESULT, new RecordWriter().u8(1).finish()),
  say(streams.attach, EVENT, startedEvent),
  say(streams.attach, DATA, Buffer.from("grüße"), 1),
  say(streams.attach, FAIL, failed),
  say(streams.cancelled, DATA, Buffer.alloc(100, "e"), 1),
  say(streams.cancelled, RESULT, exited),
  say(0, NOTICE, new RecordWriter().u16(1).u8(0).finish()),
];

const maxWords = 60;
const maxPadding = 100;
/** A payload may grow beyond what the protocol allows, and no further. */
const maxBytes = maxPayloadBytes + 60;
/** Of all stories, one after the other: a new buffer for each would cost more than to tell it. */
const told = Buffer.allocUnsafeSlow(maxWords * (maxPadding + headerBytes + maxBytes));

/** The bytes are there until the next story is encoded. */
export function encode(story: Story, epoch: number): Buffer {
  let at = 0;
  for (const { type, flags, stream, payload, epochOff = 0, lengthOff = 0, padding = 0 } of story) {
    told.fill(0, at, at + padding);
    at += padding;
    const length = (payload.length + lengthOff) >>> 0;
    writeHeader(told, at, { type, flags, epoch: (epoch + epochOff) & 0xffff, stream, length });
    at += headerBytes;
    told.set(payload, at);
    at += payload.length;
  }
  return told.subarray(0, at);
}

const telling = [0, 1, 2, 4, 0x7e, 0x7f, 0x80, 0xff];
const tellingLengths = [0, 1, 4_095, 65_535, 65_536, 65_537, 262_144, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

function pick<T>(random: Random, from: readonly T[]): T {
  return from[random.below(from.length)]!;
}

/** A story that differs from one of the corpus in a few places. */
export function mutate(corpus: readonly Story[], random: Random): Story {
  let words = [...pick(random, corpus)];
  for (let changes = 1 + random.size(6); changes > 0; changes--) {
    const at = random.below(words.length + 1);
    const word = words[at];
    switch (random.below(10)) {
      case 0:
      case 1:
        words.splice(at, 0, pick(random, truths));
        break;
      case 2:
        words.splice(at, 1 + random.below(2));
        break;
      case 3: {
        const other = pick(random, corpus);
        words = [...words.slice(0, at), ...other.slice(random.below(other.length + 1))];
        break;
      }
      case 4:
        if (word) words.splice(random.below(words.length), 0, ...Array(1 + random.size(5)).fill(word));
        break;
      case 5:
        if (word) words.splice(random.below(words.length), 0, ...words.splice(at, 1));
        break;
      default:
        if (word) words[at] = twist(word, random);
    }
  }
  return words.slice(0, maxWords);
}

/** One word, untrue in one thing. */
function twist(word: Word, random: Random): Word {
  switch (random.below(12)) {
    case 0:
      return { ...word, type: random.below(4) === 0 ? 1 + random.below(255) : 4 + random.below(8) };
    case 1:
      return { ...word, flags: random.below(3) === 0 ? random.below(256) : random.below(3) };
    case 2:
      return { ...word, stream: random.below(5) === 0 ? pick(random, tellingLengths) : random.below(14) };
    case 3:
      return { ...word, epochOff: random.below(4) };
    case 4:
      return { ...word, lengthOff: pick(random, [1, -1, 12, -12, ...tellingLengths]) };
    case 5:
      return { ...word, padding: random.size(maxPadding) };
    default:
      return { ...word, payload: twistPayload(word.payload, random) };
  }
}

function twistPayload(payload: Buffer, random: Random): Buffer {
  const bytes = Buffer.from(payload);
  const at = random.below(bytes.length + 1);
  switch (random.below(7)) {
    case 0:
      if (at < bytes.length) bytes[at] = pick(random, telling);
      return bytes;
    case 1:
      if (at < bytes.length) bytes[at]! ^= 1 << random.below(8);
      return bytes;
    case 2:
      if (at + 4 <= bytes.length) bytes.writeUInt32LE(pick(random, tellingLengths), at);
      return bytes;
    case 3:
      return bytes.subarray(0, at);
    case 4:
      return Buffer.concat([bytes.subarray(0, at), random.bytes(random.size(60)), bytes.subarray(at)]).subarray(
        0,
        maxBytes,
      );
    case 5:
      return Buffer.concat([bytes.subarray(0, at), bytes.subarray(random.below(bytes.length + 1))]).subarray(
        0,
        maxPayloadBytes,
      );
    default:
      return Buffer.alloc(Math.min(pick(random, tellingLengths), maxPayloadBytes), pick(random, telling));
  }
}
