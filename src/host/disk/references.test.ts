import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import type { Machine } from "../../vmm/vmm.ts";
import { writeCapsule } from "./capsule-folder.ts";
import { writeManifest } from "./checkpoint-folder.ts";
import { LostFound } from "./lost-found.ts";
import { imageLayer } from "./manifest.ts";
import { Paths } from "./paths.ts";
import { mayBeNeeded, readReferences } from "./references.ts";

const machine = (qemuBuild: string): Machine => ({
  ...{ qemu: "10.0.2", qemuBuild, accelerator: "tcg", cpu: "max", devices: ["ports:1"], vcpus: 1, memoryMb: 512 },
});

let paths: Paths;
beforeEach(() => {
  paths = new Paths(mkdtempSync(join(tmpdir(), "references-")));
  paths.create();
});
afterEach(() => rmSync(paths.data, { recursive: true }));

async function checkpoint(folder: string, kind: "base" | "template", build: string): Promise<void> {
  mkdirSync(folder);
  writeFileSync(join(folder, "state"), "devices");
  const about = { machine: machine(build), agent: { protocol: 1 }, revision: null, diskLayer: null, frozen: true };
  const layers = [imageLayer("minimal", `${build}-image`, null)];
  await writeManifest(folder, { ...about, kind, layers }, ["state"], { hashAll: true });
}

async function capsule(id: string, parent: string, build: string): Promise<void> {
  mkdirSync(paths.capsule(id));
  const image = { name: "minimal", hash: `${build}-image` };
  await writeCapsule(paths.capsule(id), { parent, parentSha256: null, image, machine: machine(build) });
}

const buildsIn = ({ machines }: { machines: Machine[] }) => machines.map(({ qemuBuild }) => qemuBuild).sort();

test("bases, templates and capsules need their images and machines; capsules also what they were started from", async () => {
  await checkpoint(paths.base("b"), "base", "b1");
  await checkpoint(paths.template("t1"), "template", "b2");
  await capsule("cl-1", "bases/b", "b3");
  await capsule("cl-2", "templates/t1", "b3");
  const references = await readReferences(paths);
  assert.deepEqual([...references.needed].sort(), [
    "bases/b",
    "images/minimal/b1-image",
    "images/minimal/b2-image",
    "images/minimal/b3-image",
    "templates/t1",
  ]);
  assert.deepEqual(buildsIn(references), ["b1", "b2", "b3", "b3"]);
  assert.deepEqual(references.damaged, []);
  const ofCapsules = await readReferences(paths, ["capsules"]);
  assert.deepEqual(buildsIn(ofCapsules), ["b3", "b3"]);
  assert.ok(!ofCapsules.needed.has("images/minimal/b1-image"));
});

test("what is in lost+found counts, since it may be put back", async () => {
  await checkpoint(paths.template("t1"), "template", "b2");
  await capsule("cl-1", "templates/t1", "b3");
  const lostFound = new LostFound(paths);
  await lostFound.keep("capsules", "cl-1");
  await lostFound.keep("templates", "t1");
  const references = await readReferences(paths);
  assert.deepEqual([...references.needed].sort(), [
    "images/minimal/b2-image",
    "images/minimal/b3-image",
    "templates/t1",
  ]);
  assert.deepEqual(buildsIn(references), ["b2", "b3"]);
  assert.ok((await readReferences(paths, ["capsules"])).needed.has("templates/t1"));
  while (await lostFound.removeOldest());
  assert.deepEqual([...(await readReferences(paths)).needed], []);
});

test("what the release before wrote counts too", async () => {
  const { devices: _, ...former } = machine("unrecorded");
  const format1 = {
    ...{ format: 1, kind: "template", createdAt: "2026-01-01T00:00:00.000Z", machine: { ...former, layout: 1 } },
    ...{ image: { name: "minimal", hash: "old" }, files: { state: { bytes: 1 } } },
  };
  mkdirSync(paths.template("t1"));
  writeFileSync(join(paths.template("t1"), "manifest.json"), JSON.stringify(format1));
  const { needed, machines, damaged } = await readReferences(paths);
  assert.deepEqual([[...needed], machines.length, damaged], [["images/minimal/old"], 1, []]);
});

test("a folder without a file, one with another name, and a file in place of a folder need nothing", async () => {
  for (const folder of [paths.capsule("cl-new"), paths.base("new"), join(paths.capsules, "lost+found")])
    mkdirSync(folder);
  mkdirSync(join(paths.bases, "lost+found"));
  writeFileSync(join(paths.bases, "stray"), "");
  assert.deepEqual(await readReferences(paths), { needed: new Set(), machines: [], damaged: [] });
});

test("a folder whose file is damaged, or of a later release, may need everything that this daemon has not made", async () => {
  await checkpoint(paths.base("b"), "base", "b1");
  await capsule("cl-1", "bases/b", "b1");
  const file = join(paths.capsule("cl-1"), "capsule.json");
  for (const content of ["", "\0".repeat(200), '{"format": 2, "origin": "bas', '"a text"', '{"format": 3}', "{}"]) {
    writeFileSync(file, content);
    const references = await readReferences(paths);
    assert.deepEqual(
      references.damaged.map(({ folder }) => folder),
      [paths.capsule("cl-1")],
      content,
    );
    assert.match(references.damaged[0]!.why, /capsule\.json of cl-1 cannot be (used|opened)/);
    assert.ok(references.needed.has("images/minimal/b1-image"), "the other folders count as they are");
    assert.ok(mayBeNeeded(paths, references, paths.base("b"), { isOwn: false }));
    assert.ok(!mayBeNeeded(paths, references, paths.base("b"), { isOwn: true }));
  }
  rmSync(paths.capsule("cl-1"), { recursive: true });
  const references = await readReferences(paths);
  assert.ok(!mayBeNeeded(paths, references, paths.base("b"), { isOwn: false }));
});
