import assert from "node:assert/strict";
import { describe, it } from "node:test";
import fc from "fast-check";
import { encodeFrame, FrameParser, headerBytes, maxPayloadBytes, writeHeader } from "./frames.ts";
import { ProtocolError } from "./records.ts";

interface Frame {
  type: number;
  flags: number;
  epoch: number;
  stream: number;
  payload: Buffer;
}

const anyFrame: fc.Arbitrary<Frame> = fc.record(
  {
    type: fc.integer({ min: 1, max: 255 }),
    flags: fc.nat(255),
    epoch: fc.nat(65_535),
    stream: fc.nat(0xffff_ffff),
    payload: fc
      .oneof(
        { weight: 5, arbitrary: fc.uint8Array({ maxLength: 100 }) },
        fc.nat(maxPayloadBytes).map((length) => new Uint8Array(length).fill(length)),
        fc.constant(new Uint8Array(maxPayloadBytes).fill(1)),
      )
      .map((bytes) => Buffer.from(bytes)),
  },
  { noNullPrototype: true },
);

/** Feeds a parser like a socket: into its own buffer, in chunks of the given sizes. */
function feed(parser: FrameParser, bytes: Buffer, sizes: Iterator<number>): void {
  for (let at = 0; at < bytes.length; ) {
    const space = parser.space();
    assert.ok(space.length > 0, "there is always space");
    const length = Math.min(sizes.next().value as number, space.length, bytes.length - at);
    bytes.copy(space, 0, at, at + length);
    parser.filled(length);
    at += length;
  }
}

const chunkSizes = fc.infiniteStream(fc.oneof(fc.integer({ min: 1, max: 40 }), fc.integer({ min: 1, max: 200_000 })));

describe("frames", () => {
  it("are parsed unchanged from any chunks and padding", () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(anyFrame, fc.nat(30)), { maxLength: 12 }), chunkSizes, (frames, sizes) => {
        const bytes = Buffer.concat(
          frames.flatMap(([frame, zeros]) => [Buffer.alloc(zeros), encodeFrame(frame, frame.payload)]),
        );
        const seen: Frame[] = [];
        const parser = new FrameParser((type, flags, epoch, stream, payload) => {
          seen.push({ type, flags, epoch, stream, payload: Buffer.from(payload) });
        });
        feed(parser, bytes, sizes);
        assert.deepEqual(
          seen,
          frames.map(([frame]) => frame),
        );
      }),
    );
  });

  it("of random bytes parse or throw ProtocolError, and never have a payload that is too long", () => {
    fc.assert(
      fc.property(fc.array(fc.uint8Array({ maxLength: 2_000 }), { maxLength: 10 }), chunkSizes, (chunks, sizes) => {
        const bytes = Buffer.concat(chunks);
        let parsed = 0;
        const parser = new FrameParser((...[, , , , payload]) => {
          parsed += headerBytes + payload.length;
          assert.ok(payload.length <= maxPayloadBytes);
        });
        try {
          feed(parser, bytes, sizes);
        } catch (error) {
          assert.ok(error instanceof ProtocolError);
        }
        assert.ok(parsed <= bytes.length);
      }),
      { numRuns: 500 },
    );
  });

  it("of the largest size pass; one byte more is refused from the header alone", () => {
    const header = Buffer.alloc(headerBytes);
    writeHeader(header, 0, { type: 4, flags: 0, epoch: 1, stream: 1, length: maxPayloadBytes + 1 });
    const parser = new FrameParser(() => assert.fail());
    assert.throws(() => parser.push(header), ProtocolError);
  });

  it("stop when the parser is stopped in the middle of a chunk", () => {
    const frame = encodeFrame({ type: 4, flags: 0, epoch: 1, stream: 1 }, Buffer.alloc(10_000));
    let seen = 0;
    const parser = new FrameParser(() => {
      seen++;
      parser.stop();
    });
    for (let i = 0; i < 40; i++) parser.push(Buffer.concat([frame, frame, frame]));
    assert.equal(seen, 1);
    assert.ok(parser.space().length > 0);
  });
});
