import assert from "node:assert/strict";
import { test } from "node:test";
import { type BucketManifest, decodeManifest, encodeManifest, requireTree } from "./manifest.ts";

const sha256 = "a".repeat(64);
const good: BucketManifest = {
  layers: [
    { kind: "image", key: "minimal/0123", sha256 },
    { kind: "base", key: "minimal-1-256", sha256: null },
  ],
  files: [
    {
      name: "disk.qcow2",
      bytes: (8 << 20) + 1,
      chunks: [{ object: "capsules/c/1.7/0", sha256 }, null, { object: "x/2", sha256 }],
    },
    { name: "checkpoint/state", bytes: 3, chunks: [{ object: "capsules/c/1.7/3", sha256 }] },
    { name: "lib/libstdc++.so.6", bytes: 0, chunks: [] },
    { name: "share/qemu/QEMU,VGA.bin", bytes: 0, chunks: [] },
    { name: "bin/qemu", bytes: 0, chunks: [], isExecutable: true },
  ],
};
const encoded = () =>
  JSON.parse(encodeManifest(good)) as Record<string, unknown> & { files: Record<string, unknown>[] };
const file = (more: object) => ({ ...encoded().files[0]!, ...more });

test("a manifest is read as it was written, its layers in their order", () => {
  assert.deepEqual(decodeManifest(encodeManifest(good), 1 << 30), good);
});

test("a manifest with a value that was never written is refused by name, before its files are looked at", () => {
  const chunk = ["a/0", sha256];
  const wrong: [unknown, RegExp][] = [
    [[], /it is no object/],
    [{ ...encoded(), format: 2 }, /format is 2, and this program reads 1/],
    [{ ...encoded(), layers: {} }, /has no layers/],
    [{ ...encoded(), layers: Array(65).fill(encoded().layers) }, /65 layers, more than 64/],
    [{ ...encoded(), layers: [{ kind: "image", key: "../x", sha256 }] }, /a layer that is none/],
    [{ ...encoded(), layers: [{ kind: "image", key: "x", sha256: 5 }] }, /a layer without a SHA-256/],
    [{ ...encoded(), files: "x" }, /has no files/],
    [{ ...encoded(), files: Array(257).fill({}) }, /257 files, more than 256/],
    [{ ...encoded(), files: [file({ bytes: -1 })] }, /a file without a size/],
    [{ ...encoded(), files: [file({ bytes: 2 ** 53 })] }, /a file without a size/],
    [{ ...encoded(), files: [file({ bytes: 2 ** 40 })] }, /more than 1073741824 bytes together/],
    [{ ...encoded(), files: [file({}), file({ name: "b", bytes: 2 ** 30 })] }, /more than 1073741824 bytes together/],
    [{ ...encoded(), files: [file({ chunks: null })] }, /a file without chunks/],
    [{ ...encoded(), files: [file({ bytes: 2 ** 29, chunks: [] })] }, /has not the chunks of 536870912 bytes/],
    [{ ...encoded(), files: [file({ chunks: Array(2 ** 17 + 1).fill(chunk) })] }, /more than 131072 chunks/],
    [{ ...encoded(), files: [file({ chunks: Array(4).fill(null) })] }, /has not the chunks of/],
    [{ ...encoded(), files: [file({ chunks: [chunk, null, ["../other/0", sha256]] })] }, /a chunk that is none/],
    [{ ...encoded(), files: [file({ chunks: [chunk, null, ["a//0", sha256]] })] }, /a chunk that is none/],
    [{ ...encoded(), files: [file({ chunks: [chunk, null, ["a?b=c", sha256]] })] }, /a chunk that is none/],
    [{ ...encoded(), files: [file({ chunks: [chunk, null, ["a".repeat(513), sha256]] })] }, /a chunk that is none/],
    [{ ...encoded(), files: [file({ chunks: [chunk, null, ["a", "A".repeat(64)]] })] }, /a chunk that is none/],
    [{ ...encoded(), files: [file({ chunks: [chunk, null, [...chunk, 1]] })] }, /a chunk that is none/],
    [{ ...encoded(), files: [file({ executable: 1 })] }, /"disk.qcow2" is executable: 1/],
    [{ ...encoded(), files: [file({ name: 5 })] }, /a file without a name/],
    [{ ...encoded(), files: [file({ name: "../escaped" })] }, /"..\/escaped" cannot be the name of a file/],
    [{ ...encoded(), files: [file({}), file({})] }, /two files disk.qcow2/],
  ];
  for (const [value, pattern] of wrong) assert.throws(() => decodeManifest(JSON.stringify(value), 1 << 30), pattern);
  assert.throws(() => decodeManifest("{", 1 << 30));
});

test("a file stays in its folder, and no two lie in one place", () => {
  requireTree(["a", "b/c", "b/d", "b.c", "A+_-.x"]);
  const names = [
    "",
    ".",
    "..",
    "/a",
    "a/",
    "a//b",
    "a/../b",
    ".a",
    "a/.b",
    "a\0",
    "a\\b",
    "ä",
    "a b",
    "a\n",
    "x".repeat(129),
  ];
  for (const name of [...names, Array(9).fill("a").join("/")])
    assert.throws(() => requireTree([name]), /cannot be the name of a file/, name);
  assert.throws(() => requireTree(["a", "a"]), /two files a/);
  assert.throws(() => requireTree(["a/b", "a"]), /a is a file and a folder/);
  assert.throws(() => requireTree(["a", "a/b/c"]), /a is a file and a folder/);
});
