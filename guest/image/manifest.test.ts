import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { loadImage } from "../../src/host/images/images.ts";
import { type Contents, imageHash, publishImage } from "./manifest.ts";

const hex = (digit: string) => digit.repeat(64);
let dataDir: string;
let contents: Contents;

beforeEach(() => {
  dataDir = mkdtempSync(join(tmpdir(), "manifest-"));
  const kernel = join(dataDir, "kernel-part");
  const disk = join(dataDir, "root-part");
  writeFileSync(kernel, "kernel");
  writeFileSync(disk, "disk!");
  contents = {
    name: "minimal",
    kernel: {
      key: hex("a"),
      release: "6.1.0-1-cloud-amd64",
      package: "linux-image-6.1.0-1-cloud-amd64",
      packageVersion: "6.1.1-1",
      image: { path: kernel, sha256: hex("1") },
      modules: [],
    },
    root: { key: hex("b"), image: { path: disk, sha256: hex("2") }, diskBytes: 5, packages: { bash: "5.2" } },
    initrd: Buffer.from("initrd"),
    inputs: { agent: hex("c"), initrd: hex("d"), kernel: hex("a"), root: hex("b") },
  };
});

afterEach(() => rmSync(dataDir, { recursive: true }));

test("a published image is the current one, and loads", async () => {
  const folder = await publishImage(join(dataDir, "images"), contents);
  const image = loadImage(dataDir, "minimal");
  assert.equal(image.hash, imageHash(contents));
  assert.equal(image.root, join(folder, "root.ext4"));
  assert.equal(image.diskBytes, 5);
  assert.deepEqual(image.manifest.packages, { bash: "5.2", "linux-image-6.1.0-1-cloud-amd64": "6.1.1-1" });
  assert.equal(statSync(image.root).ino, statSync(contents.root.image.path).ino, "the disk is shared, not copied");
});

test("a new agent makes a new image; the old one stays for its capsules", async () => {
  await publishImage(join(dataDir, "images"), contents);
  const old = loadImage(dataDir, "minimal");
  const inputs = { ...contents.inputs, agent: hex("e"), initrd: hex("f") };
  await publishImage(join(dataDir, "images"), { ...contents, inputs, initrd: Buffer.from("other") });
  assert.notEqual(loadImage(dataDir, "minimal").hash, old.hash);
  assert.deepEqual(loadImage(dataDir, "minimal", old.hash), old);
});

test("publishing the same image again replaces it completely and leaves no scratch folder", async () => {
  await publishImage(join(dataDir, "images"), contents);
  await publishImage(join(dataDir, "images"), contents);
  assert.deepEqual(readdirSync(join(dataDir, "images", "minimal")).sort(), [imageHash(contents), "current"].sort());
});

test("a failed build does not change the current image", async () => {
  await publishImage(join(dataDir, "images"), contents);
  const old = loadImage(dataDir, "minimal");
  const lost = { ...contents.root, image: { path: join(dataDir, "lost"), sha256: hex("2") } };
  const inputs = { ...contents.inputs, root: hex("9") };
  await assert.rejects(publishImage(join(dataDir, "images"), { ...contents, root: lost, inputs }));
  assert.deepEqual(loadImage(dataDir, "minimal"), old);
  assert.equal(readdirSync(join(dataDir, "images", "minimal")).length, 2);
});

test("the hash depends on keys and versions only", () => {
  const hash = imageHash(contents);
  assert.equal(imageHash({ ...contents, root: { ...contents.root, diskBytes: 6 } }), hash);
  for (const input of ["agent", "initrd", "kernel", "root"] as const) {
    assert.notEqual(imageHash({ ...contents, inputs: { ...contents.inputs, [input]: hex("0") } }), hash, input);
  }
  assert.notEqual(imageHash({ ...contents, root: { ...contents.root, packages: { bash: "5.3" } } }), hash);
});
