import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import fc from "fast-check";
import { emptyOverlay, type Overlay, overlayProblem } from "./qcow2.ts";

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

const overlay: Overlay = { sizeBytes: 1 << 30, backingFile: "../../bases/b/disk.qcow2", backingFormat: "qcow2" };

/** The header with some bytes replaced. */
function altered(at: number, bytes: number[] | string): Buffer {
  const start = emptyOverlay(overlay).subarray(0, 65_536);
  Buffer.from(bytes as string).copy(start, at);
  return start;
}

test("an overlay passes the check, also after QEMU has written to it", async () => {
  assert.equal(overlayProblem(emptyOverlay(overlay), overlay), undefined);
  await writeFile(join(folder, "root"), Buffer.alloc(1 << 20, 7));
  const used = { sizeBytes: 1 << 20, backingFile: "root", backingFormat: "raw" } as const;
  await writeFile(join(folder, "used"), emptyOverlay(used));
  await run("qemu-io", ["-f", "qcow2", "-c", "write -P 9 4096 8192", "used"], { cwd: folder });
  await qemuImg("rebase", "-u", "-f", "qcow2", "-F", "raw", "-b", "root", "used");
  assert.equal(overlayProblem(await readFile(join(folder, "used")), used), undefined);
});

for (const [what, start, problem] of [
  ["another backing file", emptyOverlay({ ...overlay, backingFile: "/etc/shadow" }), /backing file is "\/etc\/shadow"/],
  ["a backing file of another format", emptyOverlay({ ...overlay, backingFormat: "raw" }), /has the format raw/],
  ["another size", emptyOverlay({ ...overlay, sizeBytes: 2 ** 31 }), /disk has 2147483648 bytes/],
  ["an external data file", altered(79, [4]), /incompatible features: 0x4/],
  ["the name of a data file", altered(104, [0x44, 0x41, 0x54, 0x41]), /extension 0x44415441/],
  ["an unknown feature", altered(72, [0x80]), /incompatible features/],
  ["encryption", altered(35, [2]), /encrypted/],
  ["snapshots", altered(63, [1]), /snapshots/],
  ["bitmaps", altered(95, [1]), /extensions to be cleared/],
  ["version 2", altered(7, [2]), /version is 2/],
  ["a name beyond the cluster", altered(8, [0, 0, 0, 1]), /outside the first cluster/],
  ["a longer header", altered(100, [0, 0, 1, 0]), /header has 256 bytes/],
  ["another file", Buffer.alloc(65_536), /not a qcow2 file/],
  ["nothing", Buffer.alloc(0), /not a qcow2 file/],
] as const) {
  test(`a layer with ${what} is refused`, () => {
    assert.match(overlayProblem(start, overlay) ?? "nothing", problem);
  });
}

test("the check throws for no header", () => {
  fc.assert(
    fc.property(fc.array(fc.tuple(fc.nat(199), fc.nat(255)), { maxLength: 8 }), (changes) => {
      const start = emptyOverlay(overlay).subarray(0, 65_536);
      for (const [at, byte] of changes) start[at] = byte;
      const problem = overlayProblem(start, overlay);
      assert.ok(problem === undefined || problem.length > 5);
    }),
  );
});
