import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { emptyOverlay } from "../../vmm/qcow2.ts";
import { diskName } from "./capsule-folder.ts";
import { diskMbIn } from "./disk-layer.ts";

test("the size of a disk is its header's, and undefined for a file that is none", (t) => {
  const folder = mkdtempSync(join(tmpdir(), "disk-layer-"));
  t.after(() => rmSync(folder, { recursive: true }));
  assert.equal(diskMbIn(folder), undefined, "no file");
  const file = join(folder, diskName);
  writeFileSync(file, emptyOverlay({ sizeBytes: 5 << 20, backingFile: "root", backingFormat: "raw" }));
  assert.equal(diskMbIn(folder), 5);
  for (const content of ["", "short", Buffer.alloc(4_096)]) {
    writeFileSync(file, content);
    assert.equal(diskMbIn(folder), undefined);
  }
  rmSync(file);
  mkdirSync(file);
  assert.equal(diskMbIn(folder), undefined, "a folder");
});
