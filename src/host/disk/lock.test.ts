import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { isLocked, lockData } from "./lock.ts";

function withFolder(use: (folder: string) => void): void {
  const folder = mkdtempSync(join(tmpdir(), "lock-"));
  try {
    use(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** The answers of another process about the folder. */
function elsewhere(folder: string): string {
  const script = `
    import { isLocked, lockData } from ${JSON.stringify(join(import.meta.dirname, "lock.ts"))};
    let said = "";
    try { lockData(${JSON.stringify(folder)}).release(); } catch (error) { said = error.message; }
    console.log(JSON.stringify({ isLocked: isLocked(${JSON.stringify(folder)}), said }));`;
  return execFileSync(process.execPath, ["--input-type=module", "-e", script]).toString();
}

test("one daemon per folder until it releases the lock; the error of a second one names the first", () => {
  withFolder((folder) => {
    assert.equal(isLocked(folder), false);
    const lock = lockData(folder);
    const { isLocked: isLockedThere, said } = JSON.parse(elsewhere(folder));
    assert.equal(isLockedThere, true);
    assert.match(said, new RegExp(`in use by a running server \\(pid ${process.pid}\\)`));
    lock.release();
    assert.equal(isLocked(folder), false);
    assert.equal(JSON.parse(elsewhere(folder)).said, "");
  });
});

test("a process id overwrites a longer one completely", () => {
  withFolder((folder) => {
    for (const before of ["4194304   \n", "\0".repeat(200)]) {
      writeFileSync(join(folder, "daemon.pid"), before);
      lockData(folder).release();
      assert.equal(Number(readFileSync(join(folder, "daemon.pid"), "utf8")), process.pid);
    }
  });
});

test("another failure to lock a folder is reported with its reason", () => {
  withFolder((folder) => {
    writeFileSync(join(folder, "daemon.lock"), "this is no database, and long enough to be read as one".repeat(20));
    assert.throws(() => lockData(folder), /cannot be locked: .*not a database/);
  });
});
