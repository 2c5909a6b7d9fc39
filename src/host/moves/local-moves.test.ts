import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { movableFiles, movedId, movedRevision, movingHost, pauseOn } from "../../../test/fakes/movable-capsule.ts";
import { chunkBytes } from "../../bucket/chunks.ts";
import { pieceBytes } from "../../vmm/memory/piece-hashes.ts";
import { openCheckpoint } from "../disk/checkpoint-folder.ts";
import { requireSameLayer } from "../disk/disk-layer.ts";
import { encodeMachine } from "../disk/machine-record.ts";
import { readReferences } from "../disk/references.ts";

const released = { epoch: 3, revision: movedRevision };
const aside = `${movedId}.3.${movedRevision}`;

test("a paused capsule is described by its files, what it stands on, and the known hashes of them", async (t) => {
  const host = await movingHost(t);
  await pauseOn(host);
  const folder = host.paths.capsule(movedId);
  for (const name of ["agent.sock", "devices", "stopped"]) writeFileSync(join(folder, name), "");
  const { files, layers, machine, revision, bytes, record } = await host.moves.describe(movedId);
  assert.deepEqual(files.map(({ name }) => name).sort(), movableFiles);
  for (const { name, path, sha256 } of files) {
    assert.equal(path, join(folder, name));
    const content = readFileSync(path);
    const pieces = Array.from({ length: Math.ceil(content.length / pieceBytes) }, (_, index) =>
      createHash("sha256")
        .update(content.subarray(index * pieceBytes, (index + 1) * pieceBytes))
        .digest("hex"),
    );
    const isKnown = ["checkpoint/state", "checkpoint/memory.diff"].includes(name);
    assert.deepEqual(sha256, isKnown ? pieces : undefined, name);
  }
  assert.equal(
    bytes,
    files.reduce((sum, { path }) => sum + statSync(path).size, 0),
  );
  assert.deepEqual(
    layers.map(({ kind, key }) => `${kind} ${key}`),
    [`image minimal/${"a".repeat(64)}`, `qemu ${"b".repeat(64)}`, "base minimal-b"],
  );
  assert.equal(revision, movedRevision);
  assert.deepEqual(record.machine, encodeMachine(machine));
  assert.deepEqual(JSON.parse(JSON.stringify(record)), record);
});

test("pieces of hashes are the chunks of a bucket", () => {
  assert.equal(pieceBytes, chunkBytes);
});

test("a capsule without hashes, one that is being resumed, and one with another disk layer are not described", async (t) => {
  const host = await movingHost(t);
  const refused = (code: string, message: RegExp) =>
    assert.rejects(host.moves.describe(movedId), (error: Error & { code?: string }) => {
      assert.equal(error.code, code, error.message);
      assert.match(error.message, message);
      return true;
    });
  await pauseOn(host, { isHashed: false });
  const checkpoint = join(host.paths.capsule(movedId), "checkpoint");
  t.mock.timers.enable({ apis: ["setTimeout"] });
  host.verifier.hashLater(checkpoint);
  await refused("invalid_state", /has no hashes yet/);
  t.mock.timers.tick(0);
  await host.verifier.settled();
  assert.ok(existsSync(join(checkpoint, "hashes")), "they do not wait for their delay");
  t.mock.timers.reset();
  rmSync(host.paths.capsule(movedId), { recursive: true });
  await pauseOn(host);
  const folder = host.paths.capsule(movedId);
  writeFileSync(join(folder, "vm.json"), "{}");
  await refused("invalid_state", /is being resumed/);
  rmSync(join(folder, "vm.json"));
  writeFileSync(join(folder, "checkpoint/disk.qcow2"), "");
  await refused("invalid_state", /is being resumed/);
  rmSync(join(folder, "checkpoint/disk.qcow2"));
  const layer = join(folder, "disk.qcow2");
  const { atime, mtime } = statSync(layer);
  utimesSync(layer, atime, new Date(mtime.getTime() + 1_000));
  await refused("conflict", /its disk layer is not the one/);
  execFileSync("qemu-img", ["rebase", "-u", "-f", "qcow2", "-F", "raw", "-b", "/etc/passwd", layer]);
  await refused("agent_error", /backing file is "\/etc\/passwd"/);
});

test("a folder is set aside and brought back as it was, its disk readable at both places", async (t) => {
  const host = await movingHost(t);
  await pauseOn(host);
  const { paths, moves } = host;
  const read = (folder: string) =>
    execFileSync(
      "qemu-io",
      ["-r", "-f", "qcow2", "-c", "read -P 9 65536 131072", "-c", "read -P 0 0 65536", join(folder, "disk.qcow2")],
      {
        encoding: "utf8",
      },
    );
  await moves.setAside(movedId, released);
  assert.deepEqual([existsSync(paths.capsule(movedId)), paths.releasedNames()], [false, [aside]]);
  assert.deepEqual(host.forgotten, [movedId]);
  assert.doesNotMatch(read(paths.released(aside)), /failed/i);
  await moves.setAside(movedId, released); // the answer of the first call was lost
  assert.deepEqual(paths.releasedNames(), [aside]);
  const [next, waiting] = [{ ...released, epoch: 6 }, `${movedId}.6.${movedRevision}`];
  assert.equal(await moves.bringBack(movedId, { ...released, epoch: 4 }, 6), false);
  assert.equal(await moves.bringBack(movedId, { ...released, revision: movedRevision + 1 }, 6), false);
  assert.equal(await moves.bringBack("cl-2", released, 6), false);
  assert.equal(await moves.bringBack(movedId, released, 6), true);
  assert.deepEqual([paths.capsuleIds(), paths.releasedNames()], [[], [waiting]]);
  await moves.putBack(movedId, next, released);
  await moves.putBack(movedId, next, released); // nothing waits any longer
  assert.deepEqual(paths.releasedNames(), [aside]);
  assert.equal(await moves.bringBack(movedId, released, 6), true);
  moves.take(movedId, next);
  assert.deepEqual([paths.capsuleIds(), paths.releasedNames()], [[movedId], []]);
  const manifest = await openCheckpoint(join(paths.capsule(movedId), "checkpoint"));
  requireSameLayer(paths.capsule(movedId), manifest!, "the capsule");
  assert.doesNotMatch(read(paths.capsule(movedId)), /failed/i);
  assert.equal(await moves.bringBack(movedId, released, 6), false);
  assert.throws(() => moves.take(movedId, next), { code: "ENOENT" });
});

test("a folder is neither set aside with a VM nor brought back onto another", async (t) => {
  const host = await movingHost(t);
  const { paths, moves } = host;
  await pauseOn(host);
  writeFileSync(join(paths.capsule(movedId), "vm.json"), "{}");
  await assert.rejects(moves.setAside(movedId, released), /may still have a VM/);
  rmSync(join(paths.capsule(movedId), "vm.json"));
  await moves.setAside(movedId, released);
  await pauseOn(host);
  await assert.rejects(moves.bringBack(movedId, released, 4), /is there already/);
  await assert.rejects(moves.placeFor(movedId, { ...released, epoch: 4 }), /is there already/);
  assert.deepEqual([paths.capsuleIds(), paths.releasedNames()], [[movedId], [aside]]);
});

for (const [what, spoil] of [
  ["its disk layer was changed", (folder: string) => appendFileSync(join(folder, "disk.qcow2"), "x")],
  ["its memory was cut off", (folder: string) => writeFileSync(join(folder, "checkpoint/memory.diff"), "")],
  ["it is of another revision than its name", undefined],
  ["its base is gone", (folder: string) => rmSync(join(folder, "../../bases/minimal-b"), { recursive: true })],
] as const) {
  test(`a folder is dropped in place of being brought back where ${what}`, async (t) => {
    const host = await movingHost(t);
    const { paths, moves } = host;
    await pauseOn(host);
    const of = spoil === undefined ? { ...released, revision: 1 } : released;
    await moves.setAside(movedId, of);
    spoil?.(paths.released(aside));
    assert.equal(await moves.bringBack(movedId, of, 4), false);
    assert.deepEqual([paths.capsuleIds(), paths.releasedNames(), readdirSync(paths.work)], [[], [], []]);
  });
}

test("folders that were set aside are listed by their last use, keep what they stand on, and can be dropped", async (t) => {
  const host = await movingHost(t);
  const { paths, moves } = host;
  assert.deepEqual(await moves.cached(), []);
  for (const id of ["cl-1", "cl-2", "cl-3"]) {
    await pauseOn(host, { id, memoryBytes: 2 << 20 });
    await moves.setAside(id, released);
  }
  for (const [index, id] of ["cl-2", "cl-3", "cl-1"].entries()) utimesSync(paths.released(`${id}.3.7`), index, index);
  mkdirSync(join(paths.releasedFolder, "stray"));
  const cached = await moves.cached();
  assert.deepEqual(
    cached.map(({ id }) => id),
    ["cl-2", "cl-3", "cl-1"],
  );
  for (const { bytes, epoch, revision } of cached) {
    assert.deepEqual([epoch, revision], [3, movedRevision]);
    assert.ok(bytes > 2 << 20 && bytes < 4 << 20, String(bytes));
  }
  const needed = async () => [...(await readReferences(paths, ["capsules"])).needed].sort();
  assert.deepEqual(await needed(), ["bases/minimal-b", `images/minimal/${"a".repeat(64)}`]);
  assert.equal(
    await moves.bytes(),
    cached.reduce((sum, { bytes }) => sum + bytes, 0),
  );
  {
    using _kept = moves.keep("cl-2");
    using _twice = moves.keep("cl-2");
    {
      using _other = moves.keep("cl-2");
    }
    assert.equal(await moves.dropOldest(), true);
    assert.deepEqual(paths.releasedNames().sort(), ["cl-1.3.7", "cl-2.3.7"]);
  }
  assert.deepEqual(
    (await moves.cached()).map(({ id }) => id),
    ["cl-2", "cl-1"],
  );
  for (const { name } of cached) await moves.drop(name);
  assert.deepEqual([await moves.dropOldest(), await moves.bytes()], [false, 0]);
  assert.deepEqual([await moves.cached(), await needed()], [[], []]);
});

test("what a folder stands on is found while the folder changes its place", async (t) => {
  const host = await movingHost(t);
  const { paths, moves } = host;
  await pauseOn(host);
  await moves.setAside(movedId, released);
  // The list of capsules is read before the folder comes back, and the list of released ones after it.
  const releasedNames = paths.releasedNames.bind(paths);
  let isFirst = true;
  paths.releasedNames = () => {
    if (isFirst) paths.move(paths.released(aside), paths.capsule(movedId));
    isFirst = false;
    return releasedNames();
  };
  assert.ok((await readReferences(paths, ["capsules"])).needed.has("bases/minimal-b"));
  assert.deepEqual([isFirst, paths.capsuleIds()], [false, [movedId]]);
});

test("a start takes what waits for the row of a held capsule, of its own epoch only", async (t) => {
  const host = await movingHost(t);
  const { paths, moves } = host;
  for (const [id, epoch] of [
    ["cl-1", 4], // acquired, and not taken before the end
    ["cl-2", 3], // of the release before
    ["cl-3", 4], // its release may be under way
    ["cl-4", 4], // nobody's here
  ] as const) {
    await pauseOn(host, { id, memoryBytes: 2 << 20 });
    await moves.setAside(id, { epoch, revision: movedRevision });
  }
  await pauseOn(host, { id: "cl-5", memoryBytes: 2 << 20 });
  const row = (id: string, isReleasing = false) => ({ id, epoch: 4, isReleasing });
  const held = [row("cl-1"), row("cl-2"), row("cl-3", true), row("cl-5"), row("cl-6")];
  assert.deepEqual(await moves.repair(held), ["cl-1"]);
  assert.deepEqual(paths.capsuleIds().sort(), ["cl-1", "cl-5"]);
  assert.deepEqual(paths.releasedNames().sort(), ["cl-2.3.7", "cl-3.4.7", "cl-4.4.7"]);
  assert.deepEqual(await moves.repair(held), []);
});
