import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { isRecent, qemuVersion, requireJailable } from "./qemu-version.ts";

test("the version is the one that the program prints; a program that prints none is an error that names it", async () => {
  const folder = mkdtempSync(join(tmpdir(), "qemu-version-"));
  const program = join(folder, "qemu");
  const says = (text: string) => writeFileSync(program, `#!/bin/sh\necho '${text}'\n`, { mode: 0o700 });
  try {
    says("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)");
    assert.equal(await qemuVersion([program]), "7.2.22");
    says("hello");
    await assert.rejects(qemuVersion([program]), /qemu did not print its version/);
    await assert.rejects(qemuVersion([join(folder, "none")]), /none did not run/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("a QEMU that cannot run in a jail is refused in one sentence that tells how to install another", () => {
  assert.throws(
    () => requireJailable("7.2.22"),
    (error: Error) => {
      assert.match(
        error.message,
        /^QEMU 7\.2\.22 .*8\.2 or later .*apt-get install -t bookworm-backports qemu-system-x86/,
      );
      assert.match(error.message, /CAPSULE_JAIL=off/);
      return !error.message.includes("\n");
    },
  );
  assert.deepEqual(["7.2.22", "8.1.9", "8.2.0", "9.0.0", "10.0.2"].map(isRecent), [false, false, true, true, true]);
  requireJailable("8.2.0");
  requireJailable("10.0.2");
});
