/**
 * The host's reading of a guest, fuzzed: stories that a guest tells are mutated, and those that reach a block of src/agent
 * that none reached before are kept to be mutated further. CAPSULE_TEST_SEED makes the same choices again; what fails is
 * written to a file that CAPSULE_FUZZ_INPUT replays.
 */
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { encodeFrame, FrameType } from "../../src/agent/frames.ts";
import { WelcomeScan } from "../../src/agent/handshake.ts";
import { ProtocolError, RecordWriter } from "../../src/agent/records.ts";
import { Random } from "../conformance/random.ts";
import { Coverage } from "./coverage.ts";
import { isLong } from "./form.ts";
import { epoch, Line } from "./line.ts";
import { encode, mutate, type Story, truths } from "./story.ts";

const stories = isLong ? 1_000_000 : 5_000;
const scans = isLong ? 2_000_000 : 20_000;
/** Told between two looks at the coverage. */
const batch = 64;
const whole = () => Number.POSITIVE_INFINITY;

/** The bytes in one piece and in many give the same story, and break nothing. */
async function hear(bytes: Buffer, random: Random | undefined): Promise<void> {
  const told = await Line.hear(bytes, whole);
  if (random === undefined) return;
  const most = 1 + random.size(70_000);
  const inPieces = await Line.hear(bytes, () => 1 + random.below(most));
  assert.deepEqual(inPieces.toSorted(), told.toSorted(), "pieces change what is understood");
}

function keep(bytes: Buffer): string {
  const file = join(mkdtempSync(join(tmpdir(), "capsule-fuzz-")), "input");
  writeFileSync(file, bytes);
  return file;
}

test("stories of a hostile guest, as coverage leads", { timeout: 3_600_000 }, async (t) => {
  const replay = process.env.CAPSULE_FUZZ_INPUT;
  const random = new Random(t);
  if (replay !== undefined) return await hear(readFileSync(replay), random);
  using coverage = new Coverage("/src/agent/");
  const corpus: Story[] = [truths, ...truths.map((word) => [word]), []];
  /** Tells the stories; those of them that reach something new, found by halving. */
  const tellAll = async (tried: Story[]): Promise<Story[]> => {
    for (const [index, story] of tried.entries()) await tell(story, index % 4 === 0);
    const news = coverage.news();
    if (news.size === 0) return [];
    const half = tried.length >> 1;
    const found =
      half === 0 ? tried : [...(await tellAll(tried.slice(0, half))), ...(await tellAll(tried.slice(half)))];
    coverage.accept(news);
    return found;
  };
  const tell = async (story: Story, inPieces: boolean) => {
    const bytes = encode(story, epoch);
    try {
      await hear(bytes, inPieces ? random : undefined);
    } catch (error) {
      t.diagnostic(`CAPSULE_FUZZ_INPUT=${keep(bytes)}`);
      throw error;
    }
  };
  for (const story of corpus) await tell(story, true);
  coverage.accept(coverage.news());
  const known = coverage.blocks;
  for (let told = 0; told < stories; told += batch) {
    corpus.push(...(await tellAll(Array.from({ length: batch }, () => mutate(corpus, random)))));
  }
  const frames = coverage.callsOf("#frame");
  t.diagnostic(
    `${stories} stories, ${corpus.length} kept, ${known} → ${coverage.blocks} blocks, ${frames} frames decoded`,
  );
  assert.ok(frames > stories, "most stories do not come to a frame");
});

test("a WELCOME is found behind any noise, whatever the pieces", { timeout: 3_600_000 }, (t) => {
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
    const scan = new WelcomeScan({ epoch, nonce });
    const most = 1 + random.size(400);
    let at = 0;
    for (let found: ReturnType<WelcomeScan["take"]>; found === undefined; ) {
      assert.ok(at < bytes.length, `lost behind ${noise.map((each) => each.toString("hex"))}`);
      const piece = bytes.subarray(at, at + 1 + random.below(most));
      at += piece.length;
      try {
        found = scan.take(piece);
      } catch (error) {
        assert.ok(error instanceof ProtocolError, String(error));
        break;
      }
      if (found !== undefined) assert.equal(found.welcome.pid, 1);
    }
  }
});
