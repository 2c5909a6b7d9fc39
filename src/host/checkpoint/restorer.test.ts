/** Resumes that fail or are refused, with a launcher that does to the disk layer what a test tells it to. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import {
  appendFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { CountedSlots } from "../../../test/fakes/counted-slots.ts";
import { FakeDisk } from "../../../test/fakes/fake-disk.ts";
import { pausedFolder } from "../../../test/fakes/paused-folder.ts";
import { waitFor } from "../../../test/wait-for.ts";
import { removeVm, writeVm } from "../disk/capsule-folder.ts";
import { diskLayerOf, openCheckpoint } from "../disk/checkpoint-folder.ts";
import { isSameLayer, setLayerAside } from "../disk/disk-layer.ts";
import { encodeHashes } from "../disk/hashes.ts";
import type { Saved } from "../disk/manifest.ts";
import type { Paths } from "../disk/paths.ts";
import type { LiveGuest } from "../guest.ts";
import type { SavedGuest } from "../launch/launcher.ts";
import { Restorer, type RestorerOptions } from "./restorer.ts";

const id = "cl-1";
const turn = { owner: "a team" };
/** Every change keeps them free on the disk. */
const slackBytes = 64 << 20;
const guest = {} as LiveGuest;
/** The release before wrote this for a VM that has ended. */
const journal = { nonce: "0", process: null };

interface Paused {
  paths: Paths;
  folder: string;
  layer: string;
  checkpoint: string;
  /** The folder of scratch files. */
  work: string;
  restorer: Restorer;
  disk: FakeDisk;
  copies: CountedSlots;
  /** `work` stands for the restored VM's. */
  run: { work: () => void; times: number; pieces: unknown[] };
}

async function paused(t: TestContext, about: Partial<Saved> = {}): Promise<Paused> {
  const made = { id, content: "as it was", revision: 7 };
  const { paths, folder, checkpoint, layer } = await pausedFolder(t, made, about);
  const run: Paused["run"] = { work: () => {}, times: 0, pieces: [] };
  const restore = async (_id: string, _capsule: unknown, { pieces, revision }: SavedGuest) => {
    run.times++;
    run.pieces.push(pieces);
    await writeVm(folder, { ...journal, restores: revision ?? null });
    run.work();
    return guest;
  };
  const disk = new FakeDisk(2 ** 40, 0);
  const copies = new CountedSlots(1);
  const restorer = restorerOf(paths, { space: disk.space, copies, launcher: { restore } });
  return { paths, folder, layer, checkpoint, work: paths.work, restorer, disk, copies, run };
}

function restorerOf(paths: Paths, options: Pick<RestorerOptions, "space" | "copies" | "launcher">): Restorer {
  return new Restorer({
    ...{ paths, ...options },
    vmm: { find: async () => [], reap: async () => {} },
    templates: { requireMachine: async () => {}, requireParent: async () => {} },
    verifier: { requireSound() {}, verifyOnce() {} },
  });
}

test("a capsule whose disk layer was changed after its memory was saved is refused, and nothing is touched", async (t) => {
  const changes: ((layer: string) => void)[] = [
    (layer) => appendFileSync(layer, "!"),
    (layer) => writeFileSync(layer, "as it is."),
    (layer) => utimesSync(layer, 1_000, 1_000),
  ];
  for (const change of changes) {
    const { folder, layer, restorer, run } = await paused(t);
    change(layer);
    const before = [readFileSync(layer, "utf8"), statSync(layer).mtimeMs, readdirSync(folder)];
    await assert.rejects(restorer.restore(id, turn), {
      code: "conflict",
      message: /^capsule cl-1 cannot be resumed: its disk layer is not the one .* 9 bytes of 20.* then, \d+ bytes of /,
    });
    assert.equal(run.times, 0);
    assert.deepEqual([readFileSync(layer, "utf8"), statSync(layer).mtimeMs, readdirSync(folder)], before);
  }
});

test("a copy that keeps times is resumed: cp, tar, whole seconds", async (t) => {
  for (const program of ["cp", "tar", "tar --format=posix"]) {
    const { folder, restorer, run } = await paused(t);
    const copy = `${folder}-copy`;
    if (program === "cp") execFileSync("cp", ["--archive", folder, copy]);
    else {
      const [command, ...format] = program.split(" ");
      execFileSync(command!, [...format, "-C", folder, "-cf", `${folder}.tar`, "."]);
      mkdirSync(copy);
      execFileSync(command!, ["-C", copy, "-xf", `${folder}.tar`]);
    }
    rmSync(folder, { recursive: true });
    renameSync(copy, folder);
    assert.equal(await restorer.restore(id, turn), guest, program);
    assert.equal(run.times, 1);
  }
  const saved = { bytes: 5, mtimeNs: 1_764_000_000_123_456_789n };
  for (const mtimeNs of [1_764_000_000_123_456_789n, 1_764_000_000_123_456_000n, 1_764_000_000_000_000_000n]) {
    assert.ok(isSameLayer(saved, { bytes: 5, mtimeNs }));
    assert.ok(!isSameLayer(saved, { bytes: 6, mtimeNs }));
  }
  for (const mtimeNs of [1_764_000_000_123_456_790n, 1_763_999_999_000_000_000n, 1_764_000_001_000_000_000n]) {
    assert.ok(!isSameLayer(saved, { bytes: 5, mtimeNs }));
  }
});

test("memory is loaded with its hashes once they were made, and refused when they are damaged", async (t) => {
  const { checkpoint, restorer, run } = await paused(t);
  await restorer.restore(id, turn);
  const pieces = { bytes: 5, sha256: ["5e".repeat(32)] };
  writeFileSync(join(checkpoint, "hashes"), encodeHashes({ "memory.diff": pieces }));
  await restorer.restore(id, turn);
  assert.deepEqual(run.pieces, [undefined, pieces]);
  for (const damage of ["", "{}", encodeHashes({ "memory.diff": { ...pieces, bytes: 2 ** 40 } })]) {
    writeFileSync(join(checkpoint, "hashes"), damage);
    const message = "the hashes of the checkpoint cl-1/checkpoint are damaged";
    await assert.rejects(restorer.restore(id, turn), { code: "internal_error", message });
  }
  assert.equal(run.times, 2);
});

test("a capsule whose capsule.json a later release wrote is refused with both formats, a damaged one as damaged", async (t) => {
  const { folder, restorer, run } = await paused(t);
  const path = join(folder, "capsule.json");
  const written = JSON.parse(readFileSync(path, "utf8"));
  writeFileSync(path, JSON.stringify({ ...written, format: 3 }));
  const message = "capsule.json of cl-1 cannot be opened: it has format 3, and this release opens formats 1 to 2";
  await assert.rejects(restorer.restore(id, turn), { code: "conflict", message });
  writeFileSync(path, "");
  await assert.rejects(restorer.restore(id, turn), {
    code: "internal_error",
    message: /^capsule\.json of cl-1 cannot be used: /,
  });
  assert.equal(run.times, 0);
});

test("a checkpoint of the release before records no layer, and is resumed", async (t) => {
  const { checkpoint, layer, restorer } = await paused(t);
  const { bytes, sha256 } = (await openCheckpoint(checkpoint))!.files.state!;
  const former = { ...{ qemu: "10", accelerator: "tcg", cpu: "max" }, layout: 1, vcpus: 1, memoryMb: 128 };
  const format1 = { format: 1, kind: "pause", machine: former, image: { name: "minimal", hash: "ab" } };
  const also = { createdAt: "2026-11-20T10:00:00.000Z", files: { state: { bytes, sha256 } } };
  writeFileSync(join(checkpoint, "manifest.json"), JSON.stringify({ ...format1, ...also }));
  appendFileSync(layer, "!");
  assert.equal(await restorer.restore(id, turn), guest);
});

test("what the guest's kernel has written until a resume failed does not keep it from being resumed again", async (t) => {
  const { folder, layer, restorer, run } = await paused(t);
  run.work = () => {
    appendFileSync(layer, " and a journal");
    throw new Error("no agent");
  };
  await assert.rejects(restorer.restore(id, turn), /no agent/);
  run.work = () => {};
  assert.equal(await restorer.restore(id, turn), guest);
  await removeVm(folder);
  appendFileSync(layer, "!");
  await assert.rejects(restorer.restore(id, turn), { code: "conflict" });
});

test("where that cannot be recorded the journal stays, and the next resume records it", async (t) => {
  const { folder, layer, restorer, run, work } = await paused(t);
  run.work = () => {
    appendFileSync(layer, " and a journal");
    rmSync(work, { recursive: true });
    throw new Error("no agent");
  };
  await assert.rejects(restorer.restore(id, turn), /no agent/);
  assert.ok(existsSync(join(folder, "vm.json")));
  run.work = () => {};
  await assert.rejects(restorer.restore(id, turn), { code: "ENOENT" });
  assert.equal(run.times, 1, "not before it is recorded");
  mkdirSync(work);
  assert.equal(await restorer.restore(id, turn), guest);
});

test("the same after a daemon that died during the resume", async (t) => {
  const { folder, layer, restorer } = await paused(t);
  await writeVm(folder, { ...journal, restores: 7 });
  appendFileSync(layer, " and a journal");
  await restorer.reap(id);
  assert.equal(await restorer.restore(id, turn), guest);
});

for (const [of, restores] of [
  ["another checkpoint", 3],
  ["a template", null],
] as const) {
  test(`the journal of a VM that was restored from ${of} does not make another layer this checkpoint's`, async (t) => {
    for (const seconds of [1_000, 4_000_000_000]) {
      const { folder, layer, checkpoint, restorer, run } = await paused(t);
      await writeVm(folder, { ...journal, restores });
      utimesSync(layer, seconds, seconds);
      const before = readFileSync(join(checkpoint, "manifest.json"), "utf8");
      await assert.rejects(restorer.restore(id, turn), { code: "conflict" });
      assert.equal(readFileSync(join(checkpoint, "manifest.json"), "utf8"), before);
      assert.equal(run.times, 0);
    }
  });
}

for (const [name, content] of [
  ["of the release before, without a checkpoint,", JSON.stringify(journal)],
  ["that a power cut has emptied", ""],
] as const) {
  test(`with a journal ${name} a later layer is taken for the VM's work, an earlier one is refused`, async (t) => {
    const later = await paused(t);
    writeFileSync(join(later.folder, "vm.json"), content);
    appendFileSync(later.layer, " and a journal");
    assert.equal(await later.restorer.restore(id, turn), guest);
    const earlier = await paused(t);
    writeFileSync(join(earlier.folder, "vm.json"), content);
    utimesSync(earlier.layer, 1_000, 1_000);
    await assert.rejects(earlier.restorer.restore(id, turn), { code: "conflict" });
  });
}

test("what user processes that were not frozen have written until a resume failed is undone", async (t) => {
  const { checkpoint, layer, restorer, run } = await paused(t, { frozen: false });
  const before = diskLayerOf(layer);
  run.work = () => {
    assert.equal(readFileSync(layer, "utf8"), "as it was");
    appendFileSync(layer, " and a file");
    throw new Error("no agent");
  };
  await assert.rejects(restorer.restore(id, turn), /no agent/);
  assert.deepEqual([readFileSync(layer, "utf8"), diskLayerOf(layer)], ["as it was", before]);
  run.work = () => appendFileSync(layer, " and a file");
  assert.equal(await restorer.restore(id, turn), guest);
  assert.equal(readFileSync(layer, "utf8"), "as it was and a file");
  assert.ok(existsSync(join(checkpoint, "disk.qcow2")), "until the commit");
});

test("copies for such resumes are made within what is free beside the reserve, together", async (t) => {
  const { layer, restorer, run, disk } = await paused(t, { frozen: false });
  const before = diskLayerOf(layer);
  const other = disk.space.reserve(2 ** 40 - slackBytes, "another team's copy");
  run.work = () => assert.fail("no VM is started");
  await assert.rejects(restorer.restore(id, turn), { code: "no_space", message: /^resuming capsule \S+ needs 1 MiB/ });
  assert.deepEqual([readFileSync(layer, "utf8"), diskLayerOf(layer)], ["as it was", before]);
  other[Symbol.dispose]();
  run.work = () => {};
  assert.equal(await restorer.restore(id, turn), guest);
});

test("such a copy waits for its turn before it begins, and a signal ends the waiting", async (t) => {
  const { checkpoint, layer, restorer, copies, run } = await paused(t, { frozen: false });
  const others = Promise.withResolvers<void>();
  void copies.run("another team", () => others.promise);
  const gone = new AbortController();
  const aborted = restorer.restore(id, { ...turn, signal: gone.signal });
  await copies.lastAsked(turn.owner);
  assert.deepEqual([existsSync(join(checkpoint, "disk.qcow2")), run.times], [false, 0]);
  gone.abort(new Error("destroyed"));
  await assert.rejects(aborted, /destroyed/);
  const resumed = restorer.restore(id, turn);
  others.resolve();
  assert.equal(await resumed, guest);
  assert.equal(readFileSync(layer, "utf8"), "as it was");
});

test("a signal ends such a copy while it is made, and the capsule is as before", { timeout: 60_000 }, async (t) => {
  const { layer, checkpoint, folder, restorer, copies, disk } = await paused(t, { frozen: false, diskLayer: null });
  rmSync(layer);
  execFileSync("mkfifo", [layer]); // a copy of it has no end before a writer comes
  const reserved = disk.space.freeBytes;
  const gone = new AbortController();
  const aborted = restorer.restore(id, { ...turn, signal: gone.signal });
  await waitFor("the copy is begun", () => existsSync(layer) && statSync(layer).isFile());
  gone.abort(new Error("destroyed"));
  await assert.rejects(aborted, /^Error: destroyed$/);
  assert.ok(statSync(layer).isFIFO());
  assert.deepEqual([existsSync(join(checkpoint, "disk.qcow2")), readdirSync(folder).length], [false, 3]);
  assert.equal(disk.space.freeBytes, reserved);
  await copies.run("another team", async () => {});
});

test("an owner has two such copies until their guests are awake; another owner's resume is not held up by them", async (t) => {
  const { paths, folder, disk } = await paused(t, { frozen: false });
  for (const copy of ["cl-2", "cl-3", "cl-4"]) execFileSync("cp", ["--archive", folder, paths.capsule(copy)]);
  const awake = Promise.withResolvers<void>();
  const deaf: string[] = [];
  const restore = async (of: string) => {
    if (of === "cl-4") return guest;
    deaf.push(of);
    await awake.promise;
    return guest;
  };
  const copies = new CountedSlots(2);
  const restorer = restorerOf(paths, { space: disk.space, copies, launcher: { restore } });
  const resumed = ["cl-1", "cl-2", "cl-3"].map((of) => restorer.restore(of, turn));
  await waitFor("two guests are waited for", () => deaf.length === 2);
  assert.equal(await restorer.restore("cl-4", { owner: "another team" }), guest);
  assert.deepEqual(copies.asked.sort(), ["a team", "a team", "another team"]);
  awake.resolve();
  await Promise.all(resumed);
  assert.equal(deaf.length, 3);
});

test("the copy that such a resume works on has the holes of the layer", async (t) => {
  const { folder, checkpoint, layer } = await paused(t, { frozen: false });
  truncateSync(layer, 64 << 20);
  await setLayerAside(folder, new FakeDisk(2 ** 40, 0).space, "a resume");
  const [copy, aside] = [statSync(layer), statSync(join(checkpoint, "disk.qcow2"))];
  assert.deepEqual([copy.size, aside.size], [64 << 20, 64 << 20]);
  assert.ok(copy.blocks <= aside.blocks, `${copy.blocks} blocks instead of ${aside.blocks}`);
});

for (const when of ["reaped", "restored"] as const) {
  test(`the same after a daemon that died during the resume, when the capsule is ${when}`, async (t) => {
    const { checkpoint, layer, restorer, run } = await paused(t, { frozen: false });
    renameSync(layer, join(checkpoint, "disk.qcow2"));
    cpSync(join(checkpoint, "disk.qcow2"), layer);
    appendFileSync(layer, " and a file");
    if (when === "reaped") {
      await restorer.reap(id);
      assert.ok(!existsSync(join(checkpoint, "disk.qcow2")));
    }
    run.work = () => assert.equal(readFileSync(layer, "utf8"), "as it was");
    assert.equal(await restorer.restore(id, turn), guest);
  });
}
