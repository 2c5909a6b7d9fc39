import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { emptyOverlay } from "./qcow2.ts";

const run = promisify(execFile);
let folder = "";

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "qcow2-"));
});
after(() => rm(folder, { recursive: true, force: true }));

async function qemuImg(...args: string[]): Promise<string> {
  return (await run("qemu-img", args, { cwd: folder })).stdout;
}

for (const sizeBytes of [512, 65_536, 2 ** 29, 2 ** 29 + 512, 4 * 2 ** 30, 4 * 2 ** 40]) {
  test(`QEMU finds nothing wrong with an overlay of ${sizeBytes} bytes`, async () => {
    await writeFile(join(folder, "base"), "");
    await truncate(join(folder, "base"), 512);
    await writeFile(
      join(folder, "disk"),
      emptyOverlay({ sizeBytes, backingFile: "../../no/../such/base", backingFormat: "raw" }),
    );
    const info = JSON.parse(await qemuImg("info", "--output=json", "disk"));
    assert.equal(info["virtual-size"], sizeBytes);
    assert.equal(info.format, "qcow2");
    assert.equal(info["backing-filename"], "../../no/../such/base");
    assert.equal(info["backing-filename-format"], "raw");
    await writeFile(join(folder, "disk"), emptyOverlay({ sizeBytes, backingFile: "base", backingFormat: "raw" }));
    const check = JSON.parse(await qemuImg("check", "--output=json", "disk"));
    assert.equal(check["check-errors"], 0);
    assert.equal(check.leaks ?? 0, 0);
    assert.equal(check.corruptions ?? 0, 0);
  });
}

test("an overlay reads as its backing file, through another overlay, and takes writes", async () => {
  const sizeBytes = 1 << 20;
  await writeFile(join(folder, "root"), Buffer.alloc(sizeBytes, 7));
  await writeFile(join(folder, "one"), emptyOverlay({ sizeBytes, backingFile: "root", backingFormat: "raw" }));
  await writeFile(join(folder, "two"), emptyOverlay({ sizeBytes, backingFile: "one", backingFormat: "qcow2" }));
  assert.match(await qemuImg("compare", "-f", "qcow2", "-F", "raw", "two", "root"), /Images are identical/);
  await run("qemu-io", ["-f", "qcow2", "-c", "write -P 9 4096 8192", "two"], { cwd: folder });
  await run("qemu-io", ["-f", "qcow2", "-c", "read -P 9 4096 8192", "-c", "read -P 7 0 4096", "two"], { cwd: folder });
  assert.match(await qemuImg("compare", "-f", "qcow2", "-F", "raw", "one", "root"), /Images are identical/);
  assert.match(await qemuImg("check", "two"), /No errors/);
});

test("impossible overlays are refused", () => {
  const good = { sizeBytes: 4_096, backingFile: "base", backingFormat: "raw" as const };
  for (const sizeBytes of [0, -512, 513, 1.5, Number.NaN, Number.POSITIVE_INFINITY, 4 * 2 ** 40 + 512]) {
    assert.throws(() => emptyOverlay({ ...good, sizeBytes }), RangeError, String(sizeBytes));
  }
  for (const backingFile of ["", "a\0b", "x".repeat(1_024)]) {
    assert.throws(() => emptyOverlay({ ...good, backingFile }), RangeError);
  }
});
