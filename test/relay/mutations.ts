/** Random bytes for parsers: examples with bits, bytes and lengths changed, parts cut out, doubled and joined. */
import { randomInt } from "node:crypto";

/** Inputs of one test; CAPSULE_FUZZ_INPUTS sets another number. */
export const inputs = Number(process.env.CAPSULE_FUZZ_INPUTS ?? 100_000);
const telling = [0, 1, 0x0a, 0x0d, 0x16, 0x20, 0x3a, 0x7f, 0x80, 0xff];

/** A generator of 0 to 1, and the seed that repeats it: CAPSULE_TEST_SEED. */
export function randomOf(seed = Number(process.env.CAPSULE_TEST_SEED ?? randomInt(2 ** 31))) {
  let state = seed | 0;
  const random = () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  return { random, seed };
}

export function* mutations(examples: readonly Buffer[], random: () => number): Generator<Buffer> {
  const upTo = (max: number) => Math.floor(random() * max);
  for (let count = 0; count < inputs; count++) {
    let bytes = Buffer.from(examples[upTo(examples.length)]!);
    for (let changes = upTo(4); changes >= 0; changes--) bytes = changed(bytes, examples, upTo);
    yield bytes;
  }
}

function changed(bytes: Buffer, examples: readonly Buffer[], upTo: (max: number) => number): Buffer<ArrayBuffer> {
  const copy = Buffer.from(bytes);
  const at = upTo(copy.length + 1);
  switch (upTo(7)) {
    case 0:
      if (at < copy.length) copy[at]! ^= 1 << upTo(8);
      return copy;
    case 1:
      if (at < copy.length) copy[at] = upTo(256);
      return copy;
    case 2:
      if (at < copy.length) copy[at] = telling[upTo(telling.length)]!;
      return copy;
    case 3:
      return copy.subarray(0, at);
    case 4:
      return Buffer.concat([copy.subarray(0, at), copy.subarray(Math.min(copy.length, at + 1 + upTo(8)))]);
    case 5:
      return Buffer.concat([copy.subarray(0, at), Buffer.from([telling[upTo(telling.length)]!]), copy.subarray(at)]);
    default: {
      const other = examples[upTo(examples.length)]!;
      return Buffer.concat([copy.subarray(0, at), other.subarray(upTo(other.length))]);
    }
  }
}
