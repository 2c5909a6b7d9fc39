import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { snapshotFile } from "./qcow2-snapshot.ts";

const folder = mkdtempSync(join(tmpdir(), "qcow2-snapshot-"));
after(() => rmSync(folder, { recursive: true }));

const program = (...args: string[]) => execFileSync("qemu-img", args, { encoding: "utf8" });

/** QEMU itself loads such a file in qemu.test.ts. */
test("qemu-img finds a valid file with one snapshot of that size", () => {
  for (const bytes of [1, 4_096, 4_097, 100_000, 2 << 20]) {
    const path = join(folder, `${bytes}`);
    writeFileSync(path, snapshotFile(Buffer.alloc(bytes, 0xa5)));
    assert.match(program("check", path), /No errors were found/);
    const { snapshots } = JSON.parse(program("info", "--output", "json", path));
    assert.equal(snapshots.length, 1);
    const { name, id, ...snapshot } = snapshots[0];
    assert.deepEqual([name, id, snapshot["vm-state-size"]], ["vm", "vm", bytes]);
  }
});

test("a state beyond the tables' size is refused", () => {
  assert.throws(() => snapshotFile(Buffer.alloc((2 << 20) + 1)), RangeError);
});
