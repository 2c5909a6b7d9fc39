import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { parseMaps, runsOf } from "./pagemap.ts";

test("mappings of a file are found by device and inode", () => {
  const maps = [
    "55d0c0000000-55d0c0001000 r-xp 00000000 fe:00 77                         /usr/bin/qemu",
    "7f0000000000-7f0000200000 rw-p 00000000 fe:00 1234                       /data/base memory",
    "7f0000200000-7f0000300000 rw-p 00200000 fe:00 1234                       /data/base memory",
    "7f0000300000-7f0000400000 rw-p 00300000 00:2a 1234                       /data/base memory",
    "7f0000400000-7f0000500000 rw-p 00000000 fe:01 1234                       /elsewhere",
    "7f0000500000-7f0000600000 rw-p 00000000 00:00 0",
    "7f0000600000-7f0000700000 rw-p 00000000 00:00 0                          [heap]",
    "",
  ].join("\n");
  assert.deepEqual(parseMaps(maps, 1234, "fe:00", "/data/base memory"), [
    { address: 0x7f0000000000, offset: 0, bytes: 0x200000 },
    { address: 0x7f0000200000, offset: 0x200000, bytes: 0x100000 },
    { address: 0x7f0000300000, offset: 0x300000, bytes: 0x100000 },
  ]);
});

test("a file with an inode number that stat rounds is found by its path", () => {
  const maps = "7f0000000000-7f0000200000 rw-p 00000000 00:2a 9223372036854775001     /data/base";
  const found = parseMaps(maps, Number("9223372036854775001"), "00:2a", "/data/base");
  assert.deepEqual(found, [{ address: 0x7f0000000000, offset: 0, bytes: 0x200000 }]);
});

test("written and swapped pages are found, in maximal runs", () => {
  const upperHalf = {
    absent: 0,
    "absent, soft-dirty": 0x0080_0000,
    "the file's": 0xa000_0000,
    "the file's, soft-dirty": 0xa080_0000,
    written: 0x8000_0000,
    "written, soft-dirty, exclusive": 0x8180_0000,
    swapped: 0x4000_0000,
    "swapped, shared": 0x6000_0000,
  };
  const own = new Set(["written", "written, soft-dirty, exclusive", "swapped", "swapped, shared"]);
  const kinds = Object.keys(upperHalf) as (keyof typeof upperHalf)[];
  // Longer than what one page table has entries for: those whose entries are all alike are looked at once.
  const long = fc.tuple(fc.constantFrom(...kinds), fc.integer({ min: 500, max: 1_100 }));
  const stretch = fc.oneof(
    { weight: 9, arbitrary: fc.array(fc.constantFrom(...kinds), { maxLength: 40 }) },
    { weight: 1, arbitrary: long.map(([kind, count]) => Array.from({ length: count }, () => kind)) },
  );
  fc.assert(
    fc.property(fc.array(stretch, { maxLength: 40 }), (stretches) => {
      const pages = stretches.flat();
      const entries = new Uint32Array(2 * pages.length);
      for (const [page, kind] of pages.entries()) {
        entries[2 * page] = kind.startsWith("absent") ? 0 : 0xdead_beef;
        entries[2 * page + 1] = upperHalf[kind];
      }
      const runs = runsOf(entries, pages.length);
      const covered = runs.flatMap(({ page, count }) => Array.from({ length: count }, (_, index) => page + index));
      assert.deepEqual(
        covered,
        [...pages.keys()].filter((page) => own.has(pages[page]!)),
      );
      for (const [index, run] of runs.entries()) {
        const next = runs[index + 1];
        assert.ok(next === undefined || run.page + run.count < next.page, "runs that touch are one run");
      }
    }),
  );
});
