import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { CapsuleError } from "../../wire/errors.ts";
import { type ImageManifest, imageFiles, loadImage, manifestProblem } from "./images.ts";

const hash = "ab".repeat(32);
const sha256 = "0".repeat(64);
let dataDir: string;
let folder: string;

function goodManifest(): ImageManifest {
  return {
    format: 1,
    name: "minimal",
    hash,
    built_at: "2026-01-01T00:00:00.000Z",
    kernel_release: "6.1.0-1-cloud-amd64",
    disk_bytes: 4096,
    files: { kernel: { sha256, bytes: 3 }, initrd: { sha256, bytes: 3 }, "root.ext4": { sha256, bytes: 4096 } },
    inputs: { agent: sha256, initrd: sha256, kernel: sha256, root: sha256 },
    packages: { bash: "5.2" },
  };
}

beforeEach(() => {
  dataDir = mkdtempSync(join(tmpdir(), "images-"));
  folder = join(dataDir, "images", "minimal", hash);
  mkdirSync(folder, { recursive: true });
  const manifest = goodManifest();
  for (const file of imageFiles) writeFileSync(join(folder, file), Buffer.alloc(manifest.files[file].bytes));
  writeFileSync(join(folder, "manifest.json"), JSON.stringify(manifest));
  symlinkSync(hash, join(dataDir, "images", "minimal", "current"));
});

afterEach(() => rmSync(dataDir, { recursive: true }));

test("the current image is loaded with absolute paths that name its hash", () => {
  const { manifest, ...image } = loadImage(dataDir, "minimal");
  assert.deepEqual(image, {
    name: "minimal",
    hash,
    kernel: join(folder, "kernel"),
    initrd: join(folder, "initrd"),
    root: join(folder, "root.ext4"),
    diskBytes: 4096,
  });
  assert.deepEqual(manifest, goodManifest());
});

test("a missing image is reported with the command that builds it", () => {
  const fails = (load: () => unknown) =>
    assert.throws(
      load,
      (error) => error instanceof CapsuleError && /is not built .*run \.\/dev image/.test(error.message),
    );
  fails(() => loadImage(dataDir, "other"));
  fails(() => loadImage(join(dataDir, "nowhere"), "minimal"));
});

test("a file that is missing or cut short is found before a VM boots from it", () => {
  const fails = (pattern: RegExp) =>
    assert.throws(
      () => loadImage(dataDir, "minimal"),
      (error) =>
        error instanceof CapsuleError && pattern.test(error.message) && /run \.\/dev image/.test(error.message),
    );
  truncateSync(join(folder, "root.ext4"), 4095);
  fails(/root\.ext4 has 4095 bytes instead of 4096/);
  rmSync(join(folder, "kernel"));
  fails(/kernel has no bytes instead of 3/);
  writeFileSync(join(folder, "manifest.json"), "{");
  fails(/no readable manifest/);
});

test("a manifest of another image or another version is refused", () => {
  const cases: [object, RegExp][] = [
    [{ ...goodManifest(), name: "other" }, /holds image other/],
    [{ ...goodManifest(), hash: sha256 }, /holds image minimal 000/],
    [{ ...goodManifest(), format: 2 }, /has format 2, this version reads 1/],
  ];
  for (const [manifest, pattern] of cases) {
    writeFileSync(join(folder, "manifest.json"), JSON.stringify(manifest));
    assert.throws(() => loadImage(dataDir, "minimal"), pattern);
  }
});

test("every field of the manifest is required", () => {
  assert.equal(manifestProblem(goodManifest()), undefined);
  for (const field of Object.keys(goodManifest())) {
    assert.notEqual(manifestProblem({ ...goodManifest(), [field]: undefined }), undefined, field);
  }
  for (const value of [null, [], "manifest", 1, {}]) assert.notEqual(manifestProblem(value), undefined);
  const sizes = [-1, 0, 1.5, "1", 2 ** 60];
  for (const bytes of sizes) {
    const files = { ...goodManifest().files, initrd: { sha256, bytes } };
    assert.equal(manifestProblem({ ...goodManifest(), files }), "does not describe initrd", String(bytes));
  }
});
