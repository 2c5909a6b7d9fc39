/** On a real process that maps a base file as a VM's does. */
import assert from "node:assert/strict";
import { copyFile, mkdtemp, open, readFile, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { withMapped } from "../../../test/mapped-process.ts";
import { saveMemory } from "../../../test/save-memory.ts";
import { allocatedBytes } from "../sparse-copy.ts";
import type { VmProcess } from "../vmm.ts";
import { flattenMemory } from "./base-memory.ts";
import { dataOffset, encodeHeader, RunList } from "./diff-format.ts";
import { countPages, loadMemory, MemorySave, pagesOf, resetMemory } from "./memory-diff.ts";
import { mappingsOf, pageBytes } from "./pagemap.ts";

const memoryMb = 64;
const memoryBytes = memoryMb << 20;
const pages = memoryBytes / pageBytes;
let folder = "";

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "memory-"));
});
after(() => rm(folder, { recursive: true, force: true }));

/** A base file, pages of the given bytes in it. */
async function baseOf(name: string, filled: Map<number, number>): Promise<string> {
  const path = join(folder, name);
  await writeFile(path, "");
  await truncate(path, memoryBytes);
  await using file = await open(path, "r+");
  for (const [page, byte] of filled) await file.write(Buffer.alloc(pageBytes, byte), 0, pageBytes, page * pageBytes);
  return path;
}

/** A diff made by hand: page → byte that fills it, in ascending order; 0 is a page of zeros. */
async function diffOf(name: string, filled: Map<number, number>): Promise<string> {
  const runs = new RunList();
  const data: Buffer[] = [];
  for (const [page, byte] of filled) {
    runs.add(page, 1, byte === 0);
    if (byte !== 0) data.push(Buffer.alloc(pageBytes, byte));
  }
  const path = join(folder, name);
  await writeFile(path, Buffer.concat([encodeHeader({ memoryBytes, runs }), ...data, runs.bytes()]));
  return path;
}

test("memory that is loaded into a process is saved from it byte for byte, repeatedly", async () => {
  const base = await baseOf(
    "base",
    new Map([
      [5, 1],
      [6, 2],
      [7, 3],
      [pages - 1, 9],
    ]),
  );
  const changes = new Map([
    [0, 7],
    [5, 8],
    [6, 0],
    [1_000, 4],
    [1_001, 5],
    [pages - 2, 6],
    [pages - 1, 0],
  ]);
  for (let page = 2_000; page < 4_000; page++) changes.set(page, 1 + (page % 250));
  const sorted = new Map([...changes].sort(([a], [b]) => a - b));
  const first = await diffOf("first", sorted);
  for (const [from, to] of [
    ["first", "second"],
    ["second", "third"],
  ] as const) {
    const saved = await withMapped(folder, base, memoryMb, async (process) => {
      await loadMemory(process, base, memoryBytes, join(folder, from));
      return await saveMemory(process, base, memoryBytes, join(folder, to));
    });
    assert.equal(saved.pages, sorted.size - 2);
    assert.equal(saved.bytes, (await stat(join(folder, to))).size);
    assert.ok((await readFile(join(folder, to))).equals(await readFile(first)), to);
  }
});

test("memory without writes has an empty diff", async () => {
  const base = await baseOf("untouched", new Map([[5, 1]]));
  const path = join(folder, "empty");
  assert.deepEqual(
    await withMapped(folder, base, memoryMb, (process) => saveMemory(process, base, memoryBytes, path)),
    {
      bytes: dataOffset,
      pages: 0,
    },
  );
  assert.equal((await stat(path)).size, dataOffset);
  assert.deepEqual([...(await pagesOf(path, memoryBytes))], []);
});

test("a page of zeros that is zero in the base is not recorded", async () => {
  for (const [name, filled] of [
    ["hole", new Map()],
    ["with-data", new Map([[9, 1]])],
  ] as const) {
    const base = await baseOf(name, filled);
    const zeros = await diffOf(
      `${name}-zeros`,
      new Map([
        [3, 0],
        [4, 0],
      ]),
    );
    const saved = await withMapped(folder, base, memoryMb, async (process) => {
      await loadMemory(process, base, memoryBytes, zeros);
      return await saveMemory(process, base, memoryBytes, join(folder, `${name}-saved`));
    });
    assert.deepEqual(saved, { bytes: dataOffset, pages: 0 }, name);
  }
});

test("a save never overwrites a file, and a failed one leaves none", async () => {
  const base = await baseOf("kept", new Map());
  const path = join(folder, "taken");
  await writeFile(path, "mine");
  await withMapped(folder, base, memoryMb, async (process) => {
    await assert.rejects(saveMemory(process, base, memoryBytes, path), { code: "EEXIST" });
    await assert.rejects(saveMemory(process, base, 2 * memoryBytes, join(folder, "none")), /maps 67108864 bytes/);
  });
  assert.equal(await readFile(path, "utf8"), "mine");
  await assert.rejects(stat(join(folder, "none")), { code: "ENOENT" });
});

test("a save that is disposed of after opening leaves no file", async () => {
  const base = await baseOf("given-up", new Map([[5, 1]]));
  const path = join(folder, "given-up-diff");
  await withMapped(folder, base, memoryMb, async (process) => {
    await using save = new MemorySave(process, base, memoryBytes, path);
    await assert.rejects(save.copy(), /opened before it is copied/);
    await save.open();
    await assert.rejects(save.finish(), /copied before it is finished/);
    assert.ok((await stat(path)).isFile());
  });
  await assert.rejects(stat(path), { code: "ENOENT" });
});

test("a damaged diff changes nothing in the process", async () => {
  const base = await baseOf("clean", new Map());
  const diff = await diffOf(
    "cut",
    new Map([
      [1, 1],
      [2, 2],
    ]),
  );
  await truncate(diff, dataOffset + pageBytes);
  await withMapped(folder, base, memoryMb, async (process) => {
    await assert.rejects(loadMemory(process, base, memoryBytes, diff), /memory diff cannot be used/);
    assert.equal((await saveMemory(process, base, memoryBytes, join(folder, "clean-diff"))).pages, 0);
  });
});

test("the memory of a process that has taken over the pid is neither read nor written", async () => {
  const base = await baseOf("of-another", new Map());
  const diff = await diffOf("for-another", new Map([[1, 1]]));
  await withMapped(folder, base, memoryMb, async (process) => {
    const gone = { ...process, startTicks: process.startTicks - 1 };
    const path = join(folder, "of-another-diff");
    await assert.rejects(saveMemory(gone, base, memoryBytes, path), /process \d+ has ended/);
    await assert.rejects(loadMemory(gone, base, memoryBytes, diff), /process \d+ has ended/);
    await assert.rejects(
      resetMemory(gone, base, memoryBytes, 10, async () => {}),
      /process \d+ has ended/,
    );
    assert.equal((await saveMemory(process, base, memoryBytes, path)).pages, 0);
  });
});

test("a process that maps the base twice is refused", async () => {
  const [twice, once] = [await baseOf("twice", new Map()), await baseOf("once", new Map())];
  const backend = `size=${memoryMb}M,mem-path=${twice},share=off`;
  const before = ["one", "two"].flatMap((id) => ["-object", `memory-backend-file,id=${id},${backend}`]);
  const map = ({ pid }: VmProcess) => mappingsOf(pid, twice, memoryBytes);
  await assert.rejects(withMapped(folder, once, memoryMb, map, before), /maps .*twice more than once/);
});

test("a base with a diff merged in equals the memory of a process with that diff, and is sparse", async () => {
  for (const [name, filled] of [
    ["from-hole", new Map<number, number>()],
    [
      "from-data",
      new Map([
        [10, 1],
        [11, 2],
        [12, 3],
        [5_000, 4],
      ]),
    ],
  ] as const) {
    const base = await baseOf(name, filled);
    const changes = new Map([
      [0, 5],
      [11, 0],
      [12, 6],
      [9_000, 7],
    ]);
    const out = join(folder, `${name}-flat`);
    await flattenMemory(base, await diffOf(`${name}-diff`, changes), out);
    const expected = await readFile(base);
    for (const [page, byte] of changes) expected.fill(byte, page * pageBytes, (page + 1) * pageBytes);
    assert.ok((await readFile(out)).equals(expected), name);
    const pagesWithData = new Set([...filled.keys(), ...changes.keys()]).size - 1; // page 11 is zero now
    assert.ok((await allocatedBytes(out)) <= (pagesWithData + 16) * pageBytes, `${await allocatedBytes(out)} bytes`);
  }
});

test("a merge ends when its signal fires, and leaves no file", async () => {
  const base = await baseOf("aborted-base", new Map([[1, 1]]));
  const diff = await diffOf("aborted-diff", new Map([[2, 2]]));
  const out = join(folder, "aborted");
  const destroyed = new AbortController();
  const merging = flattenMemory(base, diff, out, destroyed.signal);
  destroyed.abort(new Error("destroyed"));
  await assert.rejects(merging, /^Error: destroyed/);
  await assert.rejects(stat(out), { code: "ENOENT" });
});

test("a failed merge leaves no file", async () => {
  const base = await baseOf("merge-base", new Map([[1, 1]]));
  const diff = join(folder, "no-diff");
  await copyFile(base, diff);
  await assert.rejects(flattenMemory(base, diff, join(folder, "merged")), /memory diff cannot be used/);
  await assert.rejects(stat(join(folder, "merged")), { code: "ENOENT" });
});

const pagesIn = ({ page, count }: { page: number; count: number }) =>
  Array.from({ length: count }, (_, at) => page + at);

test("resetMemory restores the base's pages after reporting them, up to a limit", async () => {
  const base = await baseOf(
    "reset-base",
    new Map([
      [3, 7],
      [pages - 1, 9],
    ]),
  );
  const filled = new Map([
    [3, 1],
    [4, 2],
    [600, 3],
    [pages - 1, 0],
  ]);
  const diff = await diffOf("reset-diff", filled);
  assert.deepEqual([...(await pagesOf(diff, memoryBytes))].flatMap(pagesIn), [...filled.keys()]);
  assert.equal(await countPages(diff), filled.size, "pages of zeros included");
  await withMapped(folder, base, memoryMb, async (process) => {
    await loadMemory(process, base, memoryBytes, diff);
    const changed = join(folder, "reset-changed");
    const reset = (mostPages: number, before: () => Promise<void>, told: number[] = []) =>
      resetMemory(process, base, memoryBytes, mostPages, async (runs) => {
        told.push(...runs.flatMap(pagesIn));
        await before();
      });
    await assert.rejects(reset(3, assert.fail), /more than 3 pages/);
    const told: number[] = [];
    await reset(4, async () => void (await saveMemory(process, base, memoryBytes, changed)), told);
    assert.deepEqual(told, [...filled.keys()]);
    assert.ok((await readFile(changed)).equals(await readFile(diff)), "nothing was changed before");
    const wholes = [join(folder, "reset-a"), join(folder, "reset-b")] as const;
    const after = join(folder, "reset-after");
    await saveMemory(process, base, memoryBytes, after);
    await flattenMemory(base, after, wholes[0]);
    await copyFile(base, wholes[1]);
    assert.ok((await readFile(wholes[0])).equals(await readFile(wholes[1])));
  });
});
