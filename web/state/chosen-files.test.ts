import assert from "node:assert/strict";
import { test } from "node:test";
import { type Chosen, chosenOf, droppedIn, filesMax } from "./chosen-files.ts";

type Tree = { [name: string]: Tree | string };

/** As Chromium gives them: a reader has at most 100 entries at a time. */
function entry(path: string, content: Tree | string): FileSystemEntry {
  const name = path.slice(path.lastIndexOf("/") + 1);
  const known = { name, fullPath: path, isFile: typeof content === "string", isDirectory: typeof content !== "string" };
  if (typeof content === "string")
    return { ...known, file: (resolve: (file: File) => void) => resolve(new File([content], name)) } as never;
  const createReader = () => {
    const left = Object.entries(content).map(([each, inner]) => entry(`${path}/${each}`, inner));
    return { readEntries: (resolve: (some: FileSystemEntry[]) => void) => resolve(left.splice(0, 100)) };
  };
  return { ...known, createReader } as never;
}

function drop(tree: Tree): Promise<Chosen[]> {
  const items = Object.entries(tree).map(([name, content]) => ({
    kind: "file",
    webkitGetAsEntry: () => entry(`/${name}`, content),
  }));
  return droppedIn({ items: [{ kind: "string" }, ...items], files: [] } as never);
}

const many = (count: number): Tree => Object.fromEntries(Array.from({ length: count }, (_, i) => [`f${i}`, "x"]));

test("a dropped folder is all files below it, with their paths", async () => {
  const chosen = await drop({ "a.txt": "a", src: { "b.txt": "b", deep: { "c.txt": "c", empty: {} } } });
  assert.deepEqual(
    chosen.map(({ path }) => path),
    ["a.txt", "src/b.txt", "src/deep/c.txt"],
  );
  assert.equal(await chosen[2]!.file.text(), "c");
  assert.equal((await drop({ src: many(250) })).length, 250, "a reader is read to its end");
});

test("a drop without entries is its files", async () => {
  const items = [{ kind: "file", webkitGetAsEntry: () => null }];
  const chosen = await droppedIn({ items, files: [new File(["x"], "x")] } as never);
  assert.deepEqual(
    chosen.map(({ path }) => path),
    ["x"],
  );
});

test("more files than one upload has are refused, dropped or chosen, and so are more folders", async () => {
  const refused = /More than 10,000 files/;
  assert.equal((await drop({ a: many(filesMax) })).length, filesMax);
  await assert.rejects(drop({ a: many(filesMax / 2), b: many(filesMax / 2 + 1) }), refused);
  const endless = new Proxy(
    {},
    {
      ownKeys: () => ["a"],
      getOwnPropertyDescriptor: () => ({ enumerable: true, configurable: true }),
      get: () => endless,
    },
  ) as Tree;
  await assert.rejects(drop({ endless }), refused);
  const files = Array.from({ length: filesMax + 1 }, () => new File([], "x"));
  await assert.rejects(chosenOf(files), refused);
});
