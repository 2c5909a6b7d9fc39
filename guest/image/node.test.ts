import assert from "node:assert/strict";
import { test } from "node:test";
import { npmPackages, requireIntegrity } from "./node.ts";

test("an archive with other bytes than the pinned ones is refused", () => {
  const empty = "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==";
  requireIntegrity(Buffer.alloc(0), "x 1.0", empty);
  assert.throws(() => requireIntegrity(Buffer.from("x"), "x 1.0", empty), /the archive of x 1\.0 has the hash sha512-/);
});

test("Node is of release 24, and both packages are pinned by version and hash", () => {
  const [node, npm] = npmPackages;
  assert.match(node!.version, /^24\.\d+\.\d+$/);
  assert.equal(npm!.name, "npm");
  for (const { version, integrity } of npmPackages) {
    assert.match(version, /^\d+\.\d+\.\d+$/);
    assert.match(integrity, /^sha512-[A-Za-z0-9+/]{86}==$/);
  }
});
