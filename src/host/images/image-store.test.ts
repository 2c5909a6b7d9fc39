/** Which images a data folder has, and which builds of them stay. */
import assert from "node:assert/strict";
import { mkdir, mkdtemp, readdir, rename, rm, symlink, truncate, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, test } from "node:test";
import { Paths } from "../disk/paths.ts";
import type { References } from "../disk/references.ts";
import { ImageStore, trimBuilds } from "./image-store.ts";
import { type Image, type ImageManifest, imageFiles } from "./images.ts";

const name = "minimal";
const hashOf = (build: number) => String(build).repeat(64);
const current = { name, hash: hashOf(5) } as Image;

let paths: Paths;
beforeEach(async () => {
  paths = new Paths(await mkdtemp(join(tmpdir(), "image-store-")));
  paths.create();
});
afterEach(() => rm(paths.data, { recursive: true }));

describe("images in a data folder", () => {
  /** A build of 4 KiB files, as guest/image publishes it; the current one, unless an older one was asked for. */
  async function publish(image: string, build: number, { isCurrent = true } = {}): Promise<string> {
    const folder = join(paths.data, "images", image, hashOf(build));
    await mkdir(folder, { recursive: true });
    for (const file of imageFiles) await writeFile(join(folder, file), Buffer.alloc(4_096));
    const file = { sha256: hashOf(0), bytes: 4_096 };
    const manifest: ImageManifest = {
      ...{ format: 1, name: image, hash: hashOf(build), built_at: "2026-01-01T00:00:00.000Z" },
      ...{ kernel_release: "6.1.0", disk_bytes: 4_096, files: { kernel: file, initrd: file, "root.ext4": file } },
      inputs: { agent: hashOf(0), initrd: hashOf(0), kernel: hashOf(0), root: hashOf(0) },
      packages: {},
    };
    await writeFile(join(folder, "manifest.json"), JSON.stringify(manifest));
    if (isCurrent) await symlink(hashOf(build), join(paths.data, "images", image, "current"));
    return folder;
  }

  const problems: string[] = [];
  const open = () => ImageStore.open(paths.data, (what, error) => problems.push(`${what}: ${String(error)}`));
  beforeEach(() => void problems.splice(0));

  test("are those with a current build, the default one first; folders of parts are none", async () => {
    for (const [image, build] of [
      ["dev", 2],
      ["minimal", 1],
      ["a.b", 3],
    ] as const)
      await publish(image, build);
    await publish("unfinished", 4, { isCurrent: false });
    await mkdir(join(paths.data, "images/parts/root-1"), { recursive: true });
    await mkdir(join(paths.data, "images/lost+found"));
    await writeFile(join(paths.data, "images/stray"), "");
    const store = open();
    assert.deepEqual(
      store.current.map((image) => image.name),
      ["minimal", "a.b", "dev"],
    );
    assert.equal(store.default.name, "minimal");
    assert.equal(store.named("dev")?.root, join(paths.data, "images/dev", hashOf(2), "root.ext4"));
    assert.equal(store.named("unfinished"), undefined);
    assert.deepEqual(
      store.builtIn.map(({ name: found, sizeBytes }) => [found, sizeBytes]),
      [
        ["minimal", 3 * 4_096],
        ["a.b", 3 * 4_096],
        ["dev", 3 * 4_096],
      ],
    );
    assert.deepEqual(problems, []);
  });

  test("a damaged one is reported and left out; without the default one there is no start", async () => {
    await publish("dev", 2);
    assert.throws(open, /image minimal is not built/);
    await publish("minimal", 1);
    await truncate(join(paths.data, "images/dev", hashOf(2), "initrd"), 1);
    assert.deepEqual(
      open().current.map((image) => image.name),
      ["minimal"],
    );
    assert.match(problems.join(), /^the image dev cannot be used: .*initrd has 1 bytes instead of 4096/);
    for (const unusable of ["lost+found", "a".repeat(33)]) {
      problems.splice(0);
      await publish(unusable, 3);
      assert.equal(open().current.length, 1);
      assert.match(problems.join(), /its name does not match/);
    }
    await truncate(join(paths.data, "images/minimal", hashOf(1), "kernel"), 1);
    assert.throws(open, /kernel has 1 bytes/);
  });

  test("have older builds, which are told apart by their image too", async () => {
    await publish("minimal", 1);
    await publish("dev", 1);
    const older = await publish("minimal", 2, { isCurrent: false });
    const store = open();
    assert.equal(store.build({ name: "dev", hash: hashOf(1) }), store.named("dev"));
    const found = store.build({ name: "minimal", hash: hashOf(2) });
    assert.equal(found.kernel, join(older, "kernel"));
    await rm(older, { recursive: true });
    assert.equal(store.build({ name: "minimal", hash: hashOf(2) }), found, "it was read once");
    assert.throws(() => store.build({ name: "dev", hash: hashOf(2) }), /image dev is damaged/);
  });
});

/** Nothing but these folders is needed. */
function needed(...folders: string[]): References {
  return { needed: new Set(folders), machines: [], damaged: [] };
}

const build = (number: number) => `images/${name}/${hashOf(number)}`;

describe("old builds of an image", () => {
  let builds = "";

  /** Builds 1 to 5, older ones first; 5 is the current one, 6 was published a moment ago. */
  beforeEach(async () => {
    builds = join(paths.data, "images", name);
    for (let build = 1; build <= 6; build++) {
      const folder = join(builds, hashOf(build));
      await mkdir(folder, { recursive: true });
      await writeFile(join(folder, "root.ext4"), "x");
      if (build < 6) await utimes(folder, 1_000_000 + build, 1_000_000 + build);
    }
    await symlink(current.hash, join(builds, "current"));
  });

  async function left(): Promise<string[]> {
    const names = await readdir(builds);
    return names.filter((hash) => hash !== "current").map((hash) => hash[0]!);
  }

  test("are removed when unused, except for the current, the newest and just published ones", async () => {
    assert.deepEqual((await trimBuilds(paths, [current], needed())).sort(), [1, 2, 3, 4].map(build));
    assert.deepEqual(await left(), ["5", "6"]);
    assert.deepEqual(await readdir(paths.work), []);
  });

  test("stay while something stands on them, or they are current", async () => {
    await trimBuilds(paths, [{ name, hash: hashOf(4) } as Image], needed(build(1), build(3)));
    assert.deepEqual(await left(), ["1", "3", "4", "5", "6"]);
  });

  test("all stay when a folder is damaged, or theirs is a link", async () => {
    const damaged = [{ folder: paths.capsule("cl-0"), why: "it is empty" }];
    assert.deepEqual(await trimBuilds(paths, [current], { ...needed(), damaged }), []);
    const elsewhere = join(paths.data, "elsewhere");
    await rename(join(paths.data, "images"), elsewhere);
    await symlink(elsewhere, join(paths.data, "images"));
    assert.deepEqual(await trimBuilds(paths, [current], needed()), []);
    assert.equal((await left()).length, 6);
  });
});
