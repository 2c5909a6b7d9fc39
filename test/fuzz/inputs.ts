/** Fuzzing inputs: sequences of frames that a guest sends on one connection, and their mutation. */
import { FrameType, headerBytes, maxPayloadBytes, writeHeader } from "../../src/agent/frames.ts";
import { emptyRecord, endRecord, windowRecord } from "../../src/agent/protocol.ts";
import { RecordWriter } from "../../src/agent/records.ts";
import type { Random } from "../conformance/random.ts";

export interface FuzzFrame {
  type: number;
  flags: number;
  stream: number;
  payload: Buffer;
  /** Added to the connection's epoch. */
  epochOff?: number;
  /** Added to the payload's length in the header. */
  lengthOff?: number;
  /** Zero bytes sent before the frame. */
  padding?: number;
}

export type FuzzInput = readonly FuzzFrame[];

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

/** Ids of the streams that host-end.ts opens. */
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
const frame = (stream: number, type: number, payload: Uint8Array, flags = 0): FuzzFrame => ({
  type,
  flags,
  stream,
  payload: Buffer.from(payload),
});

/** Valid frames for each stream. */
export const validFrames: FuzzInput = [
  frame(streams.run, EVENT, startedEvent),
  frame(streams.run, DATA, Buffer.alloc(5_000, "a"), 1),
  frame(streams.run, DATA, Buffer.alloc(50, "b"), 2),
  frame(streams.run, DATA, Buffer.alloc(65_536, "f"), 1),
  frame(streams.run, RESULT, exited),
  frame(streams.probe, RESULT, emptyRecord),
  frame(streams.start, RESULT, Buffer.concat([started, emptyRecord])),
  frame(streams.processes, DATA, process),
  frame(streams.processes, DATA, process.subarray(0, 20)),
  frame(streams.processes, DATA, process.subarray(20)),
  frame(streams.processes, RESULT, count(2)),
  frame(streams.list, DATA, entry),
  frame(streams.list, RESULT, count(1)),
  frame(streams.mkdir, RESULT, Buffer.concat([entry, emptyRecord])),
  frame(streams.read, EVENT, opened(10n)),
  frame(streams.read, DATA, Buffer.alloc(10, "c")),
  frame(streams.read, END, endRecord(10)),
  frame(streams.read, RESULT, emptyRecord),
  frame(streams.upload, WINDOW, windowRecord(262_144)),
  frame(streams.upload, RESULT, endRecord(300_000)),
  frame(streams.pty, EVENT, startedEvent),
  frame(streams.pty, DATA, Buffer.alloc(65_536, "d")),
  frame(streams.pty, WINDOW, windowRecord(30_000)),
  frame(streams.pty, RESULT, killed),
  frame(streams.freeze, RESULT, new RecordWriter().u8(1).finish()),
  frame(streams.attach, EVENT, startedEvent),
  frame(streams.attach, DATA, Buffer.from("grüße"), 1),
  frame(streams.attach, FAIL, failed),
  frame(streams.cancelled, DATA, Buffer.alloc(100, "e"), 1),
  frame(streams.cancelled, RESULT, exited),
  frame(0, NOTICE, new RecordWriter().u16(1).u8(0).finish()),
];

const maxFrames = 60;
const maxPadding = 100;
/** Mutated payloads may exceed the protocol's limit by this much. */
const maxBytes = maxPayloadBytes + 60;
/** Shared by all inputs: allocating a buffer for each would cost more than running it. */
const encoded = Buffer.allocUnsafeSlow(maxFrames * (maxPadding + headerBytes + maxBytes));

/** The result is valid until the next call. */
export function encode(input: FuzzInput, epoch: number): Buffer {
  let at = 0;
  for (const { type, flags, stream, payload, epochOff = 0, lengthOff = 0, padding = 0 } of input) {
    encoded.fill(0, at, at + padding);
    at += padding;
    const length = (payload.length + lengthOff) >>> 0;
    writeHeader(encoded, at, { type, flags, epoch: (epoch + epochOff) & 0xffff, stream, length });
    at += headerBytes;
    encoded.set(payload, at);
    at += payload.length;
  }
  return encoded.subarray(0, at);
}

const interestingBytes = [0, 1, 2, 4, 0x7e, 0x7f, 0x80, 0xff];
const interestingLengths = [0, 1, 4_095, 65_535, 65_536, 65_537, 262_144, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

function pick<T>(random: Random, from: readonly T[]): T {
  return from[random.below(from.length)]!;
}

/** An input that differs from one of the corpus in a few places. */
export function mutate(corpus: readonly FuzzInput[], random: Random): FuzzInput {
  let frames = [...pick(random, corpus)];
  for (let changes = 1 + random.size(6); changes > 0; changes--) {
    const at = random.below(frames.length + 1);
    const chosen = frames[at];
    switch (random.below(10)) {
      case 0:
      case 1:
        frames.splice(at, 0, pick(random, validFrames));
        break;
      case 2:
        frames.splice(at, 1 + random.below(2));
        break;
      case 3: {
        const other = pick(random, corpus);
        frames = [...frames.slice(0, at), ...other.slice(random.below(other.length + 1))];
        break;
      }
      case 4:
        if (chosen) frames.splice(random.below(frames.length), 0, ...Array(1 + random.size(5)).fill(chosen));
        break;
      case 5:
        if (chosen) frames.splice(random.below(frames.length), 0, ...frames.splice(at, 1));
        break;
      default:
        if (chosen) frames[at] = mutateFrame(chosen, random);
    }
  }
  return frames.slice(0, maxFrames);
}

/** The frame with one field changed. */
function mutateFrame(chosen: FuzzFrame, random: Random): FuzzFrame {
  switch (random.below(12)) {
    case 0:
      return { ...chosen, type: random.below(4) === 0 ? 1 + random.below(255) : 4 + random.below(8) };
    case 1:
      return { ...chosen, flags: random.below(3) === 0 ? random.below(256) : random.below(3) };
    case 2:
      return { ...chosen, stream: random.below(5) === 0 ? pick(random, interestingLengths) : random.below(14) };
    case 3:
      return { ...chosen, epochOff: random.below(4) };
    case 4:
      return { ...chosen, lengthOff: pick(random, [1, -1, 12, -12, ...interestingLengths]) };
    case 5:
      return { ...chosen, padding: random.size(maxPadding) };
    default:
      return { ...chosen, payload: mutatePayload(chosen.payload, random) };
  }
}

function mutatePayload(payload: Buffer, random: Random): Buffer {
  const bytes = Buffer.from(payload);
  const at = random.below(bytes.length + 1);
  switch (random.below(7)) {
    case 0:
      if (at < bytes.length) bytes[at] = pick(random, interestingBytes);
      return bytes;
    case 1:
      if (at < bytes.length) bytes[at]! ^= 1 << random.below(8);
      return bytes;
    case 2:
      if (at + 4 <= bytes.length) bytes.writeUInt32LE(pick(random, interestingLengths), at);
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
      return Buffer.alloc(Math.min(pick(random, interestingLengths), maxPayloadBytes), pick(random, interestingBytes));
  }
}
