import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { FakeDisk } from "../../../test/fakes/fake-disk.ts";
import { DiskSpace, writtenIn, writtenTo } from "./disk-space.ts";

const folder = mkdtempSync(join(tmpdir(), "disk-space-"));
after(() => rmSync(folder, { recursive: true }));

const mib = 1 << 20;
/** Kept free by every change. */
const slack = 64 * mib;
const noSpace = { code: "no_space" };

test("a lack of space is reported before anything is written, by the file system of the folder", () => {
  const space = new DiskSpace({ folder, reserveBytes: 0 });
  space.reserve(1, "a little");
  assert.throws(() => space.reserve(2 ** 60, "a lot"), noSpace);
});

test("the reserve is left to pauses, which need space beside their own only", () => {
  const space = new DiskSpace({ folder, reserveBytes: 2 ** 60 });
  const alone = { id: "cl-1", share: { owner: "a", isOverQuota: false, sharers: ["a"] } };
  space.reserveForPause(alone, 1, "a pause");
  const message = /MiB are free for its team$/;
  assert.throws(() => space.reserveForPause(alone, 2 ** 60, "a pause"), { ...noSpace, message });
  assert.throws(() => space.reserve(1, "a capture"), { ...noSpace, message: /MiB of them for pauses$/ });
});

test("two writers that look at the same free bytes are not both let in", () => {
  const { space } = new FakeDisk(slack + 100 * mib, 0);
  const first = space.reserve(60 * mib, "the first");
  assert.throws(() => space.reserve(60 * mib, "the second"), { ...noSpace, message: /needs 60 MiB .* only 104 MiB/ });
  space.reserve(40 * mib, "one that fits beside it")[Symbol.dispose]();
  first[Symbol.dispose]();
  first[Symbol.dispose](); // twice is once
  space.reserve(100 * mib, "the second");
  assert.throws(() => space.reserve(1, "a third"), noSpace);
});

test("what is written of a reservation does not count twice", () => {
  const disk = new FakeDisk(slack + 100 * mib, 0);
  const file = disk.file();
  using _first = disk.space.reserve(60 * mib, "the first", file.bytes);
  for (let written = 0; written < 60; written += 20) {
    disk.space.reserve(40 * mib, "the second")[Symbol.dispose]();
    assert.throws(() => disk.space.reserve(41 * mib, "the second"), noSpace);
    file.write(20 * mib);
  }
  file.write(10 * mib); // more than was said takes from what is left, and gives nothing
  assert.throws(() => disk.space.reserve(31 * mib, "the second"), noSpace);
});

test("a reservation grows while there is room, and stays as it was when there is none", () => {
  const { space } = new FakeDisk(slack + 100 * mib, 0);
  using first = space.reserve(20 * mib, "the first");
  using second = space.reserve(40 * mib, "the second");
  first.grow(60 * mib);
  assert.throws(() => second.grow(41 * mib), { ...noSpace, message: /the second needs 41 MiB/ });
  first.grow(1);
  assert.throws(() => space.reserve(1, "a third"), noSpace);
  first[Symbol.dispose]();
  second.grow(100 * mib);
});

test("bytes on disk are those of a file, or of a folder's files, and 0 where there is none", () => {
  const path = join(folder, "some");
  assert.deepEqual([writtenIn(path), writtenTo(path)], [0, 0]);
  mkdirSync(path);
  writeFileSync(join(path, "a"), Buffer.alloc(mib, 1));
  writeFileSync(join(path, "b"), Buffer.alloc(mib, 1));
  assert.ok(writtenTo(join(path, "a")) >= mib);
  assert.ok(writtenIn(path) >= 2 * mib && writtenIn(path) < 3 * mib);
});

test("what guests write is throttled by what is left beside all that is promised, pauses apart", () => {
  const disk = new FakeDisk(slack + 300 * mib, 100 * mib);
  const file = disk.file();
  using _capture = disk.space.reserve(200 * mib, "a capture", file.bytes);
  const share = { owner: "a", isOverQuota: false, sharers: ["a"] };
  using _pause = disk.space.reserveForPause({ id: "cl-1", share }, 50 * mib, "a pause");
  assert.equal(disk.space.freeBytes, slack + 100 * mib);
  file.write(150 * mib);
  assert.equal(disk.space.freeBytes, slack + 100 * mib);
});

test("what is promised to starts takes nothing of the reserve from a pause, whatever guests have written", () => {
  const disk = new FakeDisk(slack + 900 * mib, 100 * mib);
  const starts = Array.from({ length: 50 }, () => disk.space.reserve(16 * mib, "a start"));
  const pause = (id: string, bytes: number, written?: () => number) => {
    const share = { owner: "a", isOverQuota: false, sharers: ["a"] };
    return disk.space.reserveForPause({ id, share }, bytes, "a pause", written);
  };
  assert.throws(() => pause("cl-1", 101 * mib), noSpace);
  disk.freeBytes -= 800 * mib; // guests
  const file = disk.file();
  const first = pause("cl-1", 30 * mib, file.bytes);
  assert.throws(() => pause("cl-2", 71 * mib), noSpace);
  first.grow(100 * mib);
  file.write(100 * mib);
  first.keep();
  first[Symbol.dispose]();
  assert.throws(() => pause("cl-2", 1), noSpace);
  for (const start of starts) start[Symbol.dispose]();
});

test("a pause that has written into the reserve does not free what is promised beside it", () => {
  const disk = new FakeDisk(slack + 200 * mib, 100 * mib);
  using _capture = disk.space.reserve(100 * mib, "a capture");
  const file = disk.file();
  const share = { owner: "a", isOverQuota: false, sharers: ["a"] };
  const pause = (id: string, bytes: number) => disk.space.reserveForPause({ id, share }, bytes, "a pause", file.bytes);
  using first = pause("cl-1", 60 * mib);
  file.write(60 * mib);
  first.keep();
  assert.throws(() => disk.space.reserveForPause({ id: "cl-2", share }, 41 * mib, "a pause"), noSpace);
  disk.space.reserveForPause({ id: "cl-2", share }, 40 * mib, "a pause")[Symbol.dispose]();
});

test("before a refusal, what is kept only while there is room goes, as much of it as is needed", async () => {
  const disk = new FakeDisk(slack + 10 * mib, 0);
  disk.reclaimable.push(20 * mib, 20 * mib, 20 * mib);
  const first = await disk.space.orReclaim(() => disk.space.reserve(40 * mib, "a capture"));
  assert.deepEqual([disk.reclaimable.length, disk.freeBytes], [1, slack + 50 * mib]);
  await assert.rejects(
    disk.space.orReclaim(() => disk.space.reserve(40 * mib, "another")),
    noSpace,
  );
  assert.equal(disk.reclaimable.length, 1, "all of it would have been too little");
  first[Symbol.dispose]();
});

test("a pause beyond its owner's part makes room first; one that is refused for its owner's quota removes nothing", async () => {
  const disk = new FakeDisk(slack + 100 * mib, 100 * mib);
  disk.reclaimable.push(20 * mib, 20 * mib);
  const pause = (isOverQuota: boolean, bytes: number) => {
    const share = { owner: "a", isOverQuota, sharers: ["a", "b"] };
    return disk.space.orReclaim(() => disk.space.reserveForPause({ id: "cl-1", share }, bytes, "a pause"));
  };
  (await pause(false, 60 * mib))[Symbol.dispose]();
  assert.equal(disk.reclaimable.length, 1, "50 of the reserve were its own");
  await assert.rejects(pause(false, 140 * mib), noSpace);
  assert.equal(disk.reclaimable.length, 1, "20 more give it 10 more");
  disk.freeBytes += 500 * mib;
  await assert.rejects(pause(true, 60 * mib), noSpace);
  assert.equal(disk.reclaimable.length, 1);
});
