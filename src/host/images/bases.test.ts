/** Which bases and image builds are removed at a start, and which stay. */
import assert from "node:assert/strict";
import { mkdir, mkdtemp, readdir, rename, rm, symlink, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, test } from "node:test";
import type { Machine } from "../../vmm/vmm.ts";
import { writeManifest } from "../disk/checkpoint-folder.ts";
import { imageLayer } from "../disk/manifest.ts";
import { Paths } from "../disk/paths.ts";
import { Bases, keyOf } from "./bases.ts";
import { type Image, trimBuilds } from "./images.ts";

const name = "minimal";
const hashOf = (build: number) => String(build).repeat(64);
const current = { name, hash: hashOf(5) } as Image;

let paths: Paths;
let builds: string;

/** Builds 1 to 5, older ones first; 5 is the current one, 6 was published a moment ago. */
beforeEach(async () => {
  paths = new Paths(await mkdtemp(join(tmpdir(), "builds-")));
  builds = join(paths.data, "images", name);
  for (const room of [paths.capsules, paths.templates, paths.bases, paths.work]) await mkdir(room);
  for (let build = 1; build <= 6; build++) {
    const folder = join(builds, hashOf(build));
    await mkdir(folder, { recursive: true });
    await writeFile(join(folder, "root.ext4"), "x");
    if (build < 6) await utimes(folder, 1_000_000 + build, 1_000_000 + build);
  }
  await symlink(current.hash, join(builds, "current"));
});
afterEach(() => rm(paths.data, { recursive: true }));

/** A folder that says it stands on this build. */
async function standing(room: string, folder: string, file: string, build: number): Promise<void> {
  await mkdir(join(room, folder));
  await writeFile(join(room, folder, file), JSON.stringify({ image: { name, hash: hashOf(build) } }));
}

async function left(): Promise<string[]> {
  const names = await readdir(builds);
  return names.filter((hash) => hash !== "current").map((hash) => hash[0]!);
}

describe("old builds of an image", () => {
  test("are removed when unused, except for the current, the newest and just published ones", async () => {
    assert.deepEqual(
      (await trimBuilds(paths, [current])).sort(),
      [1, 2, 3, 4].map((n) => `images/${name}/${hashOf(n)}`),
    );
    assert.deepEqual(await left(), ["5", "6"]);
    assert.deepEqual(await readdir(paths.work), []);
  });

  test("stay while a base, a template or a capsule uses them, or they are current", async () => {
    await standing(paths.bases, "base", "manifest.json", 1);
    await standing(paths.templates, "t0", "manifest.json", 2);
    await standing(paths.capsules, "cl-0", "capsule.json", 3);
    await trimBuilds(paths, [{ name, hash: hashOf(4) } as Image]);
    assert.deepEqual(await left(), ["1", "2", "3", "4", "5", "6"]);
  });

  test("all stay when a manifest cannot be read, or the folder is a link", async () => {
    await standing(paths.capsules, "cl-0", "capsule.json", 3);
    await writeFile(join(paths.capsules, "cl-0", "capsule.json"), "{");
    await assert.rejects(trimBuilds(paths, [current]), SyntaxError);
    await rm(join(paths.capsules, "cl-0"), { recursive: true });
    const elsewhere = join(paths.data, "elsewhere");
    await rename(join(paths.data, "images"), elsewhere);
    await symlink(elsewhere, join(paths.data, "images"));
    assert.deepEqual(await trimBuilds(paths, [current]), []);
    assert.equal((await left()).length, 6);
  });
});

const machine: Machine = {
  ...{ qemu: "10.0.2", accelerator: "tcg", cpu: "max,-erms", devices: ["ports:1"], vcpus: 1, memoryMb: 512 },
};

test("other kernel options make another base of the same build", () => {
  const keys = ["quiet", "quiet psi=0", "quiet"].map((options) => keyOf(current, machine, options));
  assert.equal(new Set(keys).size, 2);
  for (const key of keys) assert.match(key, new RegExp(`^${name}-${current.hash.slice(0, 12)}-1x512-[A-Za-z0-9._]+$`));
});

test("other features of the processor make another base", () => {
  const machine: Machine = {
    ...{ qemu: "10.0.2", accelerator: "kvm", cpu: "host", devices: ["ports:1"], vcpus: 1, memoryMb: 512 },
  };
  const keys = ["avx sse", "sse", "avx sse"].map((cpuFeatures) => keyOf(current, { ...machine, cpuFeatures }, ""));
  assert.equal(new Set(keys).size, 2);
});

describe("a base that exists", () => {
  const image = { ...current, manifest: { files: { "root.ext4": { sha256: hashOf(5) } } } } as Image;
  const machine: Machine = {
    ...{ qemu: "10", accelerator: "tcg", cpu: "max", tscKhz: 2_000_000, devices: ["ports:1"], vcpus: 1, memoryMb: 512 },
  };
  const key = keyOf(image, machine, "");

  async function save(name: string): Promise<string> {
    const folder = paths.base(name);
    await mkdir(folder);
    await writeFile(join(folder, "state"), "devices");
    const layers = [imageLayer(image.name, image.hash, null)];
    const saved = { kind: "base", machine, layers, agent: { protocol: 1 }, revision: null, diskLayer: null } as const;
    await writeManifest(folder, { ...saved, frozen: true }, ["state"], { hashAll: true });
    return folder;
  }

  function find(tscKhz: number, isSound = (_folder: string) => true) {
    const vmm = { kernelOptions: "", machine: () => ({ ...machine, tscKhz }) };
    const scheduler = { run: () => Promise.reject(new Error("another is made")) };
    const bases = new Bases({ paths, images: [image], spare: 8, scheduler, vmm, isSound } as never);
    return bases.ensure(image, { vcpus: 1, memoryMb: 512 }, "a");
  }

  test("is used unless it was found damaged or the time stamp counter has another rate now; then another is made", async () => {
    const folder = await save(key);
    assert.equal((await find(2_000_400)).folder, folder);
    await assert.rejects(find(2_000_600), /another is made/);
    await assert.rejects(
      find(2_000_400, () => false),
      /another is made/,
    );
  });

  test("is used before the one that it replaced, whatever their names, also after a restart", async () => {
    const names = [key, `${key}-again-2`, `${key}-again-1`];
    const [first, second, third] = (await Promise.all(names.map(save))) as [string, string, string];
    const date = (seconds: number[]) =>
      Promise.all([first, second, third].map((folder, index) => utimes(folder, seconds[index]!, seconds[index]!)));
    await date([1, 2, 3]);
    assert.equal((await find(2_000_000)).folder, third);
    await date([1, 3, 2]);
    assert.equal((await find(2_000_000)).folder, second);
    assert.equal((await find(2_000_000, (folder) => folder !== second)).folder, third);
  });
});

test("unused bases of other builds of the image or QEMU are removed, however few there are", async () => {
  const base = (build: number, qemu: string) =>
    keyOf({ name, hash: hashOf(build) } as Image, { ...machine, qemuBuild: qemu.repeat(64) }, "quiet");
  const names = { needed: base(3, "a"), oldImage: base(4, "b"), oldQemu: base(5, "a"), current: base(5, "b") };
  for (const key of Object.values(names)) await mkdir(paths.base(key));
  const vmm = { machine: () => ({ ...machine, qemuBuild: "b".repeat(64) }) };
  const forgotten: string[] = [];
  const forget = (folder: string) => void forgotten.push(folder);
  const bases = new Bases({ paths, images: [current], spare: 8, vmm, forget } as never);
  await bases.trim((folder) => folder === `bases/${names.needed}`);
  assert.deepEqual(await readdir(paths.bases), [names.needed, names.current]);
  assert.deepEqual(forgotten.toSorted(), [names.oldImage, names.oldQemu].map((name) => paths.base(name)).toSorted());
});

test("each owner that needs a base has its own turn to make it, and one only", async () => {
  const owners: string[] = [];
  const scheduler = { run: (owner: string) => owners.push(owner) && new Promise(() => {}) };
  const vmm = {
    machine: (vcpus: number, memoryMb: number) => ({
      ...{ vcpus, memoryMb, qemu: "10", accelerator: "tcg", cpu: "max", devices: [] },
    }),
  };
  const bases = new Bases({
    paths,
    images: [current],
    spare: 8,
    scheduler,
    vmm: { ...vmm, kernelOptions: "" },
  } as never);
  for (const owner of ["a", "a", "b"]) void bases.ensure(current, { vcpus: 1, memoryMb: 512 }, owner);
  void bases.ensure(current, { vcpus: 2, memoryMb: 512 }, "a");
  while (owners.length < 3) await new Promise(setImmediate);
  assert.deepEqual(owners.toSorted(), ["a", "a", "b"]);
});
