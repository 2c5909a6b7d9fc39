import assert from "node:assert/strict";
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { FakeClock } from "../../../test/fakes/fake-clock.ts";
import { pausedFolder } from "../../../test/fakes/paused-folder.ts";
import { markStopped, unmarkStopped } from "./capsule-folder.ts";
import { openCheckpoint } from "./checkpoint-folder.ts";
import { requireSameLayer } from "./disk-layer.ts";
import { LostFound } from "./lost-found.ts";
import type { Paths } from "./paths.ts";

const dayMs = 86_400_000;
const paused = { id: "cl-1", content: "as it was", revision: 7 };

function template(paths: Paths, storage: string): void {
  mkdirSync(paths.template(storage), { recursive: true });
  writeFileSync(join(paths.template(storage), "manifest.json"), "{}");
}

test("a folder is kept as it is, and moving it back puts it back", async (t) => {
  const { paths, folder, checkpoint } = await pausedFolder(t, paused);
  const lostFound = new LostFound(paths);
  assert.equal(lostFound.size, 0);
  await lostFound.keep("capsules", "cl-1");
  assert.deepEqual([existsSync(folder), lostFound.size, paths.capsuleIds()], [false, 1, []]);
  assert.ok((await lostFound.bytes()) > 0);
  renameSync(join(paths.data, "lost+found", "capsules", "cl-1"), folder);
  const manifest = await openCheckpoint(checkpoint);
  requireSameLayer(folder, manifest!, "the capsule");
  assert.equal(manifest!.revision, 7);
  assert.equal(lostFound.size, 0);
});

test("a stopped capsule is complete until it is booted", async (t) => {
  const { paths, folder, checkpoint } = await pausedFolder(t, paused);
  rmSync(checkpoint, { recursive: true });
  const lostFound = new LostFound(paths);
  const isSaved = () => lostFound.isSaved("capsules", paused.id);
  assert.equal(isSaved(), false);
  await markStopped(folder);
  assert.equal(isSaved(), true);
  assert.deepEqual([await unmarkStopped(folder), isSaved(), await unmarkStopped(folder)], [true, false, false]);
});

test("what is complete, is a capsule with a checkpoint, or a template with its manifest", async (t) => {
  const { paths } = await pausedFolder(t, paused);
  const lostFound = new LostFound(paths);
  mkdirSync(paths.capsule("cl-2"));
  template(paths, "t1");
  mkdirSync(paths.template("t2"));
  assert.deepEqual(
    ["cl-1", "cl-2", "cl-3"].map((id) => lostFound.isSaved("capsules", id)),
    [true, false, false],
  );
  assert.deepEqual(
    ["t1", "t2", "t3"].map((storage) => lostFound.isSaved("templates", storage)),
    [true, false, false],
  );
});

test("a folder goes after a week, and the oldest go first while the disk is short; no other file does", async (t) => {
  const { paths } = await pausedFolder(t, paused);
  const clock = new FakeClock();
  const lostFound = new LostFound(paths, clock);
  for (const storage of ["t1", "t2", "t3"]) template(paths, storage);
  const own = join(paths.data, "lost+found");
  mkdirSync(own);
  writeFileSync(join(own, "#12345"), "of the file system's check");
  const kept = () => [...paths.lostNames("capsules"), ...paths.lostNames("templates")];
  await lostFound.keep("templates", "t2");
  clock.advance(1_000);
  await lostFound.keep("capsules", "cl-1");
  clock.advance(dayMs);
  await lostFound.keep("templates", "t1");
  await lostFound.keep("templates", "t3");
  clock.advance(6 * dayMs - 1_000);
  await lostFound.removeExpired();
  assert.deepEqual(kept(), ["cl-1", "t1", "t3"]);
  assert.deepEqual(await Promise.all([lostFound.removeOldest(), lostFound.removeOldest()]), [true, true]);
  assert.equal(lostFound.size, 1);
  assert.deepEqual([await lostFound.removeOldest(), await lostFound.removeOldest()], [true, false]);
  assert.deepEqual(readdirSync(paths.work), []);
  assert.equal(readFileSync(join(own, "#12345"), "utf8"), "of the file system's check");
});

for (const stepMs of [365 * dayMs, -365 * dayMs]) {
  test(`a clock set ${stepMs > 0 ? "ahead" : "back"} by a year neither removes a folder nor keeps it for longer`, async (t) => {
    const { paths } = await pausedFolder(t, paused);
    const clock = new FakeClock();
    clock.step(10_000 * dayMs);
    const before = new LostFound(paths, clock);
    await before.keep("capsules", "cl-1");
    template(paths, "t1");
    await before.keep("templates", "t1");
    clock.step(stepMs);
    await before.removeExpired();
    clock.advance(3 * dayMs);
    await before.removeExpired();
    assert.equal(before.size, 2);

    clock.step(stepMs); // while the server is down
    const restarted = new LostFound(paths, clock);
    template(paths, "t1");
    await restarted.keep("templates", "t1");
    await restarted.removeExpired();
    clock.advance(4 * dayMs - 1);
    await restarted.removeExpired();
    assert.equal(restarted.size, 2);
    clock.advance(1);
    await restarted.removeExpired();
    assert.deepEqual([paths.lostNames("capsules"), paths.lostNames("templates")], [[], ["t1"]], "t1 was kept anew");
  });
}

test("a record of ages that cannot be read lets folders be kept for another week", async (t) => {
  const { paths } = await pausedFolder(t, paused);
  const clock = new FakeClock();
  await new LostFound(paths, clock).keep("capsules", "cl-1");
  writeFileSync(join(paths.data, "lost+found", "ages.json"), '{"capsules/cl-1":');
  const lostFound = new LostFound(paths, clock);
  clock.advance(7 * dayMs - 1);
  await lostFound.removeExpired();
  assert.equal(lostFound.size, 1);
  clock.advance(1);
  await lostFound.removeExpired();
  assert.equal(lostFound.size, 0);
});

test("an earlier folder of the same name makes place", async (t) => {
  const { paths } = await pausedFolder(t, paused);
  const lostFound = new LostFound(paths);
  template(paths, "t1");
  await lostFound.keep("templates", "t1");
  template(paths, "t1");
  writeFileSync(join(paths.template("t1"), "later"), "");
  await lostFound.keep("templates", "t1");
  assert.equal(lostFound.size, 1);
  assert.ok(statSync(join(paths.lost("templates", "t1"), "later")).isFile());
});
