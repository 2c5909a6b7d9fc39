import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { keyOf, parsePackages, sha256OfFile } from "./inputs.ts";
import { dev, minimal, packagesOf } from "./recipes.ts";
import { rootKey } from "./root.ts";

test("a key depends on settings and files, not on their order", async () => {
  const key = await keyOf({ release: "bookworm", diskMb: 4096 }, ["packages.txt", "customize"]);
  assert.match(key, /^[0-9a-f]{64}$/);
  assert.equal(await keyOf({ diskMb: 4096, release: "bookworm" }, ["customize", "packages.txt"]), key);
  const others = [
    await keyOf({ diskMb: 4097, release: "bookworm" }, ["customize", "packages.txt"]),
    await keyOf({ release: "bookworm" }, ["customize", "packages.txt"]),
    await keyOf({ diskMb: 4096, release: "bookworm" }, ["customize"]),
  ];
  assert.equal(new Set([key, ...others]).size, 4);
});

test("a disk of another size is another root, and so is another recipe", async () => {
  const keys = await Promise.all([rootKey(minimal, 4096), rootKey(minimal, 8192), rootKey(dev, 4096)]);
  assert.equal(new Set(keys).size, 3);
});

test("the image dev has every package of minimal", async () => {
  const [of, more] = [await packagesOf(minimal), await packagesOf(dev)];
  assert.deepEqual(
    of.filter((name) => !more.includes(name)),
    [],
  );
  assert.ok(more.includes("gcc") && !of.includes("gcc"));
});

test("a file's hash covers all its bytes", async () => {
  const folder = await mkdtemp(join(tmpdir(), "inputs-"));
  try {
    for (const bytes of [0, 1, 5 * 1024 * 1024 + 3]) {
      const content = randomBytes(bytes);
      await writeFile(join(folder, "file"), content);
      assert.equal(await sha256OfFile(join(folder, "file")), createHash("sha256").update(content).digest("hex"));
    }
  } finally {
    await rm(folder, { recursive: true });
  }
});

test("the list of packages is read without comments, sorted, each once", () => {
  assert.deepEqual(parsePackages("# remark\n\ngit\nbash # shell\ngit\nlibstdc++6\n"), ["bash", "git", "libstdc++6"]);
  assert.throws(() => parsePackages("--option\n"), /not a package name: "--option"/);
});
