import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { type CpioEntry, cpioArchive } from "./cpio.ts";

interface Found {
  path: string;
  mode: number;
  device: [number, number];
  content: Buffer;
}

/** Reads as the kernel's init/initramfs.c does: fields of 8 hex digits, name and content each padded to 4. */
function parse(archive: Buffer): Found[] {
  const found: Found[] = [];
  for (let at = 0; ; ) {
    assert.equal(archive.toString("latin1", at, at + 6), "070701");
    const hex = archive.toString("latin1", at + 6, at + 110).match(/[0-9a-f]{8}/g) ?? [];
    assert.equal(hex.length, 13);
    const fields = hex.map((digits) => Number.parseInt(digits, 16));
    const field = (index: number) => fields[index] as number;
    const nameBytes = field(11);
    const path = archive.toString("utf8", at + 110, at + 110 + nameBytes - 1);
    assert.equal(archive[at + 110 + nameBytes - 1], 0, "the name ends with NUL");
    const start = align(at + 110 + nameBytes);
    const end = start + field(6);
    at = align(end);
    if (path === "TRAILER!!!") {
      assert.equal(at, archive.length);
      return found;
    }
    const clean = [field(2), field(3), field(5), field(7), field(8), field(12)];
    assert.deepEqual(clean, [0, 0, 0, 0, 0, 0], "no owner, time, device or checksum");
    found.push({ path, mode: field(1), device: [field(9), field(10)], content: archive.subarray(start, end) });
  }
}

function align(offset: number): number {
  return (offset + 3) & ~3;
}

test("directories, files and devices arrive with their type, mode and content", () => {
  const archive = cpioArchive([
    { kind: "directory", path: "dev", mode: 0o755 },
    { kind: "character_device", path: "dev/console", mode: 0o600, major: 5, minor: 1 },
    { kind: "file", path: "init", mode: 0o755, content: Buffer.from("hello") },
  ]);
  assert.deepEqual(parse(archive), [
    { path: "dev", mode: 0o040755, device: [0, 0], content: Buffer.alloc(0) },
    { path: "dev/console", mode: 0o020600, device: [5, 1], content: Buffer.alloc(0) },
    { path: "init", mode: 0o100755, device: [0, 0], content: Buffer.from("hello") },
  ]);
});

test("an empty archive is its trailer alone", () => {
  assert.deepEqual(parse(cpioArchive([])), []);
});

test("names and contents of every length are padded to 4 bytes", () => {
  const files = fc.uniqueArray(
    fc.record({ name: fc.stringMatching(/^[a-zé]{1,40}$/), content: fc.uint8Array({ maxLength: 70 }) }),
    { selector: ({ name }) => name, maxLength: 8 },
  );
  fc.assert(
    fc.property(files, (drawn) => {
      const entries = drawn.map(({ name, content }): CpioEntry => ({ kind: "file", path: name, mode: 0o644, content }));
      const found = parse(cpioArchive(entries)).map(({ path, content }) => ({ name: path, content: [...content] }));
      assert.deepEqual(
        found,
        drawn.map(({ name, content }) => ({ name, content: [...content] })),
      );
    }),
  );
});

test("paths that leave the archive's root or precede their directory are refused", () => {
  for (const path of ["/init", "", "a//b", "../a", "a/..", "./a", "a\0b", "sys/kernel"]) {
    assert.throws(() => cpioArchive([{ kind: "directory", path, mode: 0o755 }]), /cpio: /, path);
  }
  const twice: CpioEntry = { kind: "directory", path: "dev", mode: 0o755 };
  assert.throws(() => cpioArchive([twice, twice]), /dev occurs twice/);
  assert.throws(() => cpioArchive([{ kind: "directory", path: "dev", mode: 0o40755 }]), /has mode 40755/);
});
