/** Memories that are too large for the event loop, on a real process that maps a base file as a VM's does. */
import assert from "node:assert/strict";
import { mkdtemp, open, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, type TestContext, test } from "node:test";
import { withMapped } from "../../../test/mapped-process.ts";
import { saveMemory } from "../../../test/save-memory.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { dataOffset, encodeHeader, RunList } from "./diff-format.ts";
import { loadMemory, MemorySave } from "./memory-diff.ts";
import { memoryThreads } from "./memory-threads.ts";
import { pageBytes } from "./pagemap.ts";
import { hashPieces } from "./piece-hashes.ts";

const memoryMb = 64;
const memoryBytes = memoryMb << 20;
/** The first 16 MiB are copied without another thread. */
const pagesHere = 4_096;
let folder = "";
let base = "";

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "threads-"));
  base = join(folder, "base");
  await writeFile(base, "");
  await truncate(base, memoryBytes);
  await using file = await open(base, "r+");
  for (const page of [1, 6_000, 6_001, 9_999])
    await file.write(Buffer.alloc(pageBytes, 9), 0, pageBytes, page * pageBytes);
});
after(() => rm(folder, { recursive: true, force: true }));

/** A diff of the pages `from` to `to`: zeros where the base has data, else bytes by the page's number. */
async function diffOf(name: string, from: number, to: number): Promise<string> {
  const runs = new RunList();
  const data: Buffer[] = [];
  for (let page = from; page < to; page++) {
    const isZero = page === 1 || page === 6_000 || page === 6_001;
    runs.add(page, 1, isZero);
    if (!isZero) data.push(Buffer.alloc(pageBytes, 1 + (page % 250)));
  }
  const path = join(folder, name);
  await writeFile(path, Buffer.concat([encodeHeader({ memoryBytes, runs }), ...data, runs.bytes()]));
  return path;
}

function countTasks(t: TestContext) {
  const [save, load] = [t.mock.method(memoryThreads, "save"), t.mock.method(memoryThreads, "load")];
  return () => ({ saves: save.mock.callCount(), loads: load.mock.callCount() });
}

test("a large memory is loaded and saved byte for byte, in another thread beyond the first pages", async (t) => {
  const tasks = countTasks(t);
  const diff = await diffOf("large", 0, 10_000);
  const saved = join(folder, "large-saved");
  const { pages, bytes } = await withMapped(folder, base, memoryMb, async (process) => {
    await loadMemory(process, base, memoryBytes, diff);
    return await saveMemory(process, base, memoryBytes, saved);
  });
  const expected = await readFile(diff);
  assert.deepEqual({ pages, bytes }, { pages: 10_000 - 3, bytes: expected.length });
  assert.ok((await readFile(saved)).equals(expected));
  assert.deepEqual(tasks(), { saves: 1, loads: 1 });
});

test("a large memory is compared with its hashes in the other thread", async (t) => {
  const tasks = countTasks(t);
  const diff = await diffOf("hashed", 0, 10_000);
  const pieces = await hashPieces(diff);
  const [first = "", ...rest] = pieces.sha256;
  await withMapped(folder, base, memoryMb, async (process) => {
    await loadMemory(process, base, memoryBytes, diff, pieces);
    const wrong = { ...pieces, sha256: [...rest, first] };
    const refused = loadMemory(process, base, memoryBytes, diff, wrong);
    await assert.rejects(refused, { code: "internal_error", message: /are not those that were saved/ });
  });
  assert.deepEqual(tasks(), { saves: 0, loads: 2 });
});

test("a memory of 16 MiB needs no other thread, in one page more the thread copies", async (t) => {
  const tasks = countTasks(t);
  for (const [count, expected] of [
    [pagesHere, { saves: 0, loads: 0 }],
    [pagesHere + 1, { saves: 1, loads: 1 }],
  ] as const) {
    const diff = await diffOf(`diff-${count}`, 0, count);
    const saved = join(folder, `saved-${count}`);
    await withMapped(folder, base, memoryMb, async (process) => {
      await loadMemory(process, base, memoryBytes, diff);
      await saveMemory(process, base, memoryBytes, saved);
    });
    assert.ok((await readFile(saved)).equals(await readFile(diff)));
    assert.deepEqual(tasks(), expected);
  }
});

test("several large memories at once", async () => {
  const diffs = await Promise.all([0, 1, 2].map((index) => diffOf(`one-of-many-${index}`, index, 5_000 + index)));
  await Promise.all(
    diffs.map((diff) =>
      withMapped(folder, base, memoryMb, async (process) => {
        await loadMemory(process, base, memoryBytes, diff);
        await saveMemory(process, base, memoryBytes, `${diff}-saved`);
      }),
    ),
  );
  for (const diff of diffs) assert.ok((await readFile(`${diff}-saved`)).equals(await readFile(diff)));
});

test("a failure in the thread is the caller's, with its code, and the thread serves the next task", async () => {
  const intact = await diffOf("intact", 0, 5_000);
  const damaged = await diffOf("damaged", 0, 5_000);
  await using file = await open(damaged, "r+");
  await file.write("X", 0);
  await withMapped(folder, base, memoryMb, async (process) => {
    await assert.rejects(loadMemory(process, base, memoryBytes, damaged), (error: unknown) => {
      assert.ok(error instanceof CapsuleError);
      assert.deepEqual(
        [error.code, error.message],
        ["internal_error", "The memory diff cannot be used: it is no memory diff."],
      );
      return true;
    });
    await loadMemory(process, base, memoryBytes, intact);
    const path = join(folder, "removed");
    await using save = new MemorySave(process, base, memoryBytes, path);
    await save.open();
    await rm(path);
    await assert.rejects(save.copy(), { code: "ENOENT" });
    await saveMemory(process, base, memoryBytes, path);
    assert.ok((await readFile(path)).equals(await readFile(intact)));
  });
});

test("a diff of many pages of zeros, which is a small file, is loaded in another thread", async (t) => {
  const tasks = countTasks(t);
  const runs = new RunList();
  runs.add(0, pagesHere + 1, true);
  const path = join(folder, "zeros");
  await writeFile(path, Buffer.concat([encodeHeader({ memoryBytes, runs }), runs.bytes()]));
  assert.equal(runs.dataPages, 0);
  await withMapped(folder, base, memoryMb, async (process) => {
    await loadMemory(process, base, memoryBytes, path);
    const { pages, bytes } = await saveMemory(process, base, memoryBytes, join(folder, "zeros-saved"));
    assert.deepEqual({ pages, bytes }, { pages: 0, bytes: dataOffset + 8 }, "one page of them is not zero in the base");
  });
  assert.deepEqual(tasks(), { saves: 1, loads: 1 });
});
