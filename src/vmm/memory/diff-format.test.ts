import assert from "node:assert/strict";
import { mkdtemp, open, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import fc from "fast-check";
import { CapsuleError } from "../../wire/errors.ts";
import { dataOffset, encodeHeader, RunList, readDiff } from "./diff-format.ts";
import { pageBytes } from "./pagemap.ts";

const pages = 1_000;
const memoryBytes = pages * pageBytes;
let folder = "";

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "diff-"));
});
after(() => rm(folder, { recursive: true, force: true }));

function listOf(runs: { page: number; count: number; isZero: boolean }[]): RunList {
  const list = new RunList();
  for (const { page, count, isZero } of runs) list.add(page, count, isZero);
  return list;
}

function diffOf(runs: RunList): Buffer {
  const data = Buffer.alloc(runs.dataPages * pageBytes);
  return Buffer.concat([encodeHeader({ memoryBytes, runs }), data, runs.bytes()]);
}

async function read(bytes: Buffer, memory = memoryBytes) {
  await writeFile(join(folder, "diff"), bytes);
  await using file = await open(join(folder, "diff"), "r");
  return await readDiff(file, memory);
}

const someRuns = fc
  .array(fc.record({ gap: fc.nat(5), count: fc.integer({ min: 1, max: 9 }), isZero: fc.boolean() }), { maxLength: 60 })
  .map((parts) => {
    let page = 0;
    return parts.map(({ gap, count, isZero }) => {
      const run = { page: page + gap, count, isZero };
      page = run.page + count;
      return run;
    });
  });

function pagesOf(list: Iterable<{ page: number; count: number; isZero: boolean }>): string[] {
  return [...list].flatMap(({ page, count, isZero }) =>
    Array.from({ length: count }, (_, index) => `${page + index}${isZero ? "z" : ""}`),
  );
}

test("a diff's index reads as it was written", async () => {
  await fc.assert(
    fc.asyncProperty(someRuns, async (runs) => {
      const diff = await read(diffOf(listOf(runs)));
      assert.deepEqual(pagesOf(diff.runs), pagesOf(runs));
      assert.equal(diff.dataPages + diff.zeroPages, pagesOf(runs).length);
    }),
    { numRuns: 50 },
  );
});

test("adjacent runs are merged", () => {
  const list = new RunList();
  for (let page = 0; page < 5_000; page++) list.add(page, 1, page >= 4_000);
  assert.deepEqual(
    [...list],
    [
      { page: 0, count: 4_000, isZero: false },
      { page: 4_000, count: 1_000, isZero: true },
    ],
  );
});

const intact = diffOf(
  listOf([
    { page: 3, count: 2, isZero: false },
    { page: 9, count: 4, isZero: true },
  ]),
);
const indexAt = dataOffset + 2 * pageBytes;

const changes: [string, (bytes: Buffer) => Buffer][] = [
  ["no bytes at all", () => Buffer.alloc(0)],
  ["a header cut short", (bytes) => bytes.subarray(0, 63)],
  ["another kind of file", (bytes) => set(bytes, 0, 0x41)],
  ["a later version", (bytes) => set(bytes, 8, 2)],
  ["another page size", (bytes) => set(bytes, 13, 0x20)],
  ["another memory size", (bytes) => set(bytes, 16, 1)],
  ["more runs than pages", (bytes) => set(bytes, 31, 0xff)],
  ["more data than memory", (bytes) => set(bytes, 39, 0xff)],
  ["an index elsewhere", (bytes) => set(bytes, 48, 1)],
  ["an index cut short", (bytes) => bytes.subarray(0, -1)],
  ["bytes after the index", (bytes) => Buffer.concat([bytes, Buffer.from([0])])],
  ["a run beyond the memory", (bytes) => set(bytes, indexAt + 9, 0x10)],
  ["runs that overlap", (bytes) => set(bytes, indexAt + 8, 4)],
  ["runs in disorder", (bytes) => set(bytes, indexAt + 8, 0)],
  ["an empty run", (bytes) => set(bytes, indexAt + 4, 0)],
  ["a zero run called data", (bytes) => set(bytes, indexAt + 15, 0)],
];

function set(bytes: Buffer, at: number, value: number): Buffer {
  const copy = Buffer.from(bytes);
  copy[at] = value;
  return copy;
}

for (const [what, change] of changes) {
  test(`a diff is refused: ${what}`, async () => {
    await read(intact);
    await assert.rejects(read(change(intact)), CapsuleError);
  });
}

test("a diff of a smaller memory is refused", async () => {
  await assert.rejects(read(intact, memoryBytes / 2), /it is for 4096000 bytes of memory, not 2048000/);
});

test("a damaged header or index is refused or harmless, never worse", async () => {
  const flip = fc.record({ at: fc.nat(63), value: fc.nat(255), end: fc.boolean() });
  await fc.assert(
    fc.asyncProperty(flip, async ({ at, value, end }) => {
      const bytes = set(intact, end ? intact.length - 1 - (at % 16) : at, value);
      const diff = await read(bytes).catch((error: unknown) => {
        assert.ok(error instanceof CapsuleError, String(error));
        return undefined;
      });
      for (const { page, count } of diff?.runs ?? []) assert.ok(count > 0 && page + count <= pages);
    }),
    { numRuns: 200 },
  );
});
