/**
 * The host's reading of a guest, fuzzed: stories that a guest tells are mutated, and those that reach a block of src/agent
 * that none reached before are kept to be mutated further (searcher.ts). What fails is written to a file that
 * CAPSULE_FUZZ_INPUT tells again, in the pieces of the CAPSULE_TEST_SEED that is named with it.
 */
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { encodeFrame, FrameType } from "../../src/agent/frames.ts";
import { WelcomeScanner } from "../../src/agent/handshake.ts";
import { ProtocolError, RecordWriter } from "../../src/agent/records.ts";
import { Random, seedOf } from "../conformance/random.ts";
import { isLong } from "./form.ts";
import { hear } from "./hearing.ts";
import { epoch } from "./line.ts";
import { type Progress, search } from "./search.ts";

const stories = isLong ? 1_000_000 : 5_000;
const scans = isLong ? 2_000_000 : 20_000;
const longestMs = 4 * 3_600_000;

function keep(bytes: Buffer): string {
  const file = join(mkdtempSync(join(tmpdir(), "capsule-fuzz-")), "input");
  writeFileSync(file, bytes);
  return file;
}

test("stories of a hostile guest, as coverage leads", { timeout: longestMs }, async (t) => {
  const replay = process.env.CAPSULE_FUZZ_INPUT;
  const seed = seedOf(t);
  if (replay !== undefined) return await hear(readFileSync(replay), seed);
  const said: Progress[] = [];
  const onProgress = (progress: Progress) => {
    said.push(progress);
    if (isLong) t.diagnostic(JSON.stringify(progress));
  };
  const end = await search({ seed, stories }, onProgress, t.signal);
  if ("failure" in end) {
    const bytes = Buffer.from(end.failure.bytes);
    t.diagnostic(`CAPSULE_TEST_SEED=${end.failure.seed} CAPSULE_FUZZ_INPUT=${keep(bytes)}`);
    await hear(bytes, end.failure.seed);
    assert.fail(`not when it was told again: ${end.failure.error}`);
  }
  const { told, kept, blocks, frames } = end.progress;
  t.diagnostic(`${told} stories, ${kept} kept, ${said[0]?.blocks} → ${blocks} blocks, ${frames} frames decoded`);
  assert.ok(told >= stories && frames > stories, "most stories do not come to a frame");
  assert.ok(blocks > said[0]!.blocks, "the coverage does not lead");
});

test("a WELCOME is found behind any noise, whatever the pieces", { timeout: longestMs }, (t) => {
  const random = new Random(t);
  for (let i = 0; i < scans; i++) {
    const nonce = random.bytes(16);
    const payload = new RecordWriter()
      .raw(nonce)
      .u16(1)
      .str("x".repeat(random.size(300)))
      .u8(1)
      .u32(1)
      .finish();
    const welcome = encodeFrame({ type: FrameType.WELCOME, flags: 0, epoch, stream: 0 }, payload);
    const noise = Array.from({ length: random.below(4) }, () =>
      random.below(2) === 0 ? random.bytes(random.size(200)) : welcome.subarray(0, random.below(28)),
    );
    const bytes = Buffer.concat([...noise, welcome, Buffer.from("rest")]);
    const scan = new WelcomeScanner({ epoch, nonce });
    const most = 1 + random.size(400);
    // Noise and the first bytes of the WELCOME can form its header and nonce by chance. Only then may decoding fail.
    const isAmbiguous = bytes.indexOf(welcome.subarray(0, 28)) < bytes.length - welcome.length - 4;
    let at = 0;
    for (let found: ReturnType<WelcomeScanner["take"]>; found === undefined; ) {
      if (at >= bytes.length) assert.fail(`lost behind ${noise.map((each) => each.toString("hex"))}`);
      const piece = bytes.subarray(at, at + 1 + random.below(most));
      at += piece.length;
      try {
        found = scan.take(piece);
      } catch (error) {
        assert.ok(error instanceof ProtocolError && isAmbiguous, String(error));
        break;
      }
      if (found !== undefined) assert.equal(found.welcome.pid, 1);
    }
  }
});
