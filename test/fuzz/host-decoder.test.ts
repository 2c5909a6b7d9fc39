/**
 * Coverage-guided fuzzing of the host's decoder: inputs are mutated, and those that reach new code of src/agent are
 * kept for further mutation (searcher.ts). A failing input is written to a file. CAPSULE_FUZZ_INPUT repeats it, with
 * the chunks of the CAPSULE_TEST_SEED that is printed with it.
 */
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { encodeFrame, FrameType } from "../../src/agent/frames.ts";
import { decodeWelcome, type Welcome } from "../../src/agent/protocol.ts";
import { ProtocolError, RecordWriter } from "../../src/agent/records.ts";
import { WelcomeScanner } from "../../src/agent/welcome-scanner.ts";
import { Random, seedOf } from "../conformance/random.ts";
import { checkInput } from "./check-input.ts";
import { isLong } from "./fuzz-form.ts";
import { epoch } from "./host-end.ts";
import { type Progress, search } from "./search.ts";

const inputs = isLong ? 1_000_000 : 100_000;
const scans = isLong ? 2_000_000 : 100_000;
const deadlineMs = 4 * 3_600_000;

function saveInput(bytes: Buffer): string {
  const file = join(mkdtempSync(join(tmpdir(), "capsule-fuzz-")), "input");
  writeFileSync(file, bytes);
  return file;
}

test("coverage-guided inputs of a hostile guest", { timeout: deadlineMs }, async (t) => {
  const replay = process.env.CAPSULE_FUZZ_INPUT;
  const seed = seedOf(t);
  if (replay !== undefined) return await checkInput(readFileSync(replay), seed);
  const reports: Progress[] = [];
  const onProgress = (progress: Progress) => {
    reports.push(progress);
    if (isLong) t.diagnostic(JSON.stringify(progress));
  };
  const end = await search({ seed, inputs }, onProgress, t.signal);
  if ("failure" in end) {
    const bytes = Buffer.from(end.failure.bytes);
    t.diagnostic(`CAPSULE_TEST_SEED=${end.failure.seed} CAPSULE_FUZZ_INPUT=${saveInput(bytes)}`);
    await checkInput(bytes, end.failure.seed);
    assert.fail(`not reproducible: ${end.failure.error}`);
  }
  const { inputs: runs, kept, blocks, frames } = end.progress;
  t.diagnostic(`${runs} inputs, ${kept} kept, ${reports[0]?.blocks} → ${blocks} blocks, ${frames} frames decoded`);
  assert.ok(runs >= inputs && frames > inputs, "most inputs do not reach a frame");
  assert.ok(blocks > reports[0]!.blocks, "the mutations reached no new code");
});

test("a WELCOME is found after any noise, in any chunks", { timeout: deadlineMs }, (t) => {
  const random = new Random(t);
  t.diagnostic(`${scans} inputs`);
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
    const scan = new WelcomeScanner({ epoch, nonce }, decodeWelcome);
    const most = 1 + random.size(400);
    // Noise and the first bytes of the WELCOME can form its header and nonce by chance. Only then may decoding fail.
    const isAmbiguous = bytes.indexOf(welcome.subarray(0, 28)) < bytes.length - welcome.length - 4;
    let at = 0;
    for (let found: ReturnType<WelcomeScanner<Welcome>["take"]>; found === undefined; ) {
      if (at >= bytes.length) assert.fail(`not found after ${noise.map((each) => each.toString("hex"))}`);
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
