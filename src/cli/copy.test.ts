/** Modes of copies, on this machine's own files: `test/cli` copies into a VM and out of it. */
import assert from "node:assert/strict";
import { chmod, lstat, mkdir, mkdtemp, readdir, readFile, readlink, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { entryOf, LocalCapsule } from "../../test/fakes/local-capsule.ts";
import { type Member, pax, tar } from "../../test/tar.ts";
import { type Call, parse, UsageError } from "./command.ts";
import { commands } from "./commands.ts";
import { cp } from "./copy.ts";
import { download } from "./download.ts";
import { Progress } from "./progress.ts";
import { upload } from "./upload.ts";

let folder: string;
before(async () => {
  folder = await mkdtemp(join(tmpdir(), "capsule-copy-"));
});
after(() => rm(folder, { recursive: true, force: true }));

const modes = { "": 0o700, shared: 0o2775, "shared/sticky": 0o1777, "shared/key": 0o600, run: 0o755, plain: 0o644 };

async function makeTree(name: string): Promise<string> {
  const tree = join(folder, name);
  await mkdir(join(tree, "shared/sticky"), { recursive: true });
  for (const file of ["shared/key", "run", "plain"]) await writeFile(join(tree, file), file);
  for (const [path, mode] of Object.entries(modes)) await chmod(join(tree, path), mode);
  return tree;
}

async function modeAt(path: string): Promise<number> {
  return (await lstat(path)).mode & 0o7777;
}

async function modesIn(tree: string): Promise<Record<string, number>> {
  const paths = ["", ...(await readdir(tree, { recursive: true }))];
  return Object.fromEntries(await Promise.all(paths.map(async (path) => [path, await modeAt(join(tree, path))])));
}

function inDirection(direction: "in" | "out", { capsule }: { capsule: LocalCapsuleOf }) {
  const progress = new Progress(false);
  const tally = { files: 0, links: 0, directories: 0 };
  return direction === "in"
    ? (source: string, target: string) => upload(capsule, source, target, progress, tally)
    : (source: string, target: string) => download({ capsule, deepest: 9 }, source, target, progress, tally);
}
type LocalCapsuleOf = ReturnType<typeof LocalCapsule.make>["capsule"];

const ways = (["in", "out"] as const).flatMap((direction) =>
  [false, true].map((asArchive) => ({ direction, asArchive })),
);

for (const { direction, asArchive } of ways) {
  const way = `${direction}${asArchive ? "-as-archive" : ""}`;
  describe(`a copy ${way}`, () => {
    test("has the modes of files and folders, of folders also setgid and sticky", async () => {
      const tree = await makeTree(`tree-${way}`);
      const copy = inDirection(direction, LocalCapsule.make(asArchive));
      await copy(tree, join(folder, `copy-${way}`));
      assert.deepEqual(await modesIn(join(folder, `copy-${way}`)), modes);
    });

    test("of a folder into one that is there gives it and its files the new modes", async () => {
      const tree = await makeTree(`again-${way}`);
      const copy = inDirection(direction, LocalCapsule.make(asArchive));
      const target = join(folder, `into-${way}`);
      await mkdir(target);
      await copy(tree, target);
      for (const path of ["", "shared", "shared/sticky"]) await chmod(join(target, `again-${way}`, path), 0o2777);
      for (const path of ["shared/key", "run", "plain"]) await chmod(join(target, `again-${way}`, path), 0o666);
      await copy(tree, target);
      assert.deepEqual(await modesIn(join(target, `again-${way}`)), modes);
    });

    test("of one file has its mode, without setuid and setgid", async () => {
      const [from, to] = [join(folder, `file-${way}`), join(folder, `file-to-${way}`)];
      const copy = inDirection(direction, LocalCapsule.make(asArchive));
      await writeFile(from, "text");
      for (const mode of [0o640, 0o755, 0o644, 0o4711, 0o400]) {
        await chmod(from, mode);
        await copy(from, to);
        assert.deepEqual([await modeAt(to), await readFile(to, "utf8")], [mode & 0o777, "text"]);
      }
    });

    test("is never wider than its mode while it is under way", async () => {
      const tree = await makeTree(`under-way-${way}`);
      const target = join(folder, `under-way-to-${way}`);
      const made = LocalCapsule.make(asArchive);
      const wider: string[] = [];
      let chunks = 0;
      made.local.onChunk = async () => {
        chunks++;
        if (asArchive && (await lstat(target).catch(() => undefined)) === undefined) return;
        for (const name of await readdir(target, { recursive: true })) {
          const found = await lstat(join(target, name));
          const path = name.endsWith(".part") ? "shared/key" : name; // the narrowest of the three
          const final = modes[path as keyof typeof modes];
          // A folder in the making may be its owner's alone.
          if ((found.mode & 0o077 & ~final) !== 0) wider.push(`${name} ${found.mode.toString(8)}`);
        }
        if (((await modeAt(target)) & 0o077) !== 0) wider.push(target);
      };
      await inDirection(direction, made)(tree, target);
      assert.deepEqual([wider, chunks >= (asArchive ? 1 : 3)], [[], true]);
    });
  });
}

for (const { direction, asArchive } of ways) {
  const way = `${direction}${asArchive ? "-as-archive" : ""}`;
  test(`names of any bytes are copied ${way} as they are, with their modes`, async () => {
    const [tree, target] = [join(folder, `names-${way}`), join(folder, `names-to-${way}`)];
    const latin = Buffer.from("caf\xe9", "latin1");
    const names = [latin, Buffer.from("back\\slash"), Buffer.from("line\n"), Buffer.from("$(id) 'ü")];
    const at = (root: string, ...parts: Buffer[]) =>
      Buffer.concat([Buffer.from(root), ...parts.flatMap((part) => [Buffer.from("/"), part])]);
    await mkdir(tree);
    for (const name of names) {
      await mkdir(at(tree, name), { mode: 0o750 });
      await writeFile(at(tree, name, name), name, { mode: 0o600 });
      await symlink(name, at(tree, name, Buffer.from("link")));
    }
    await inDirection(direction, LocalCapsule.make(asArchive))(tree, target);
    const sorted = (list: Buffer[]) => list.map((name) => name.toString("latin1")).sort();
    assert.deepEqual(sorted(await readdir(target, { encoding: "buffer" })), sorted(names));
    for (const name of names) {
      const link = await readlink(at(target, name, Buffer.from("link")), { encoding: "buffer" });
      assert.deepEqual([await readFile(at(target, name, name)), link], [name, name]);
      const modes = await Promise.all([at(target, name), at(target, name, name)].map((path) => lstat(path)));
      assert.deepEqual(
        modes.map(({ mode }) => mode & 0o777),
        [0o750, 0o600],
      );
    }
  });
}

test("a link is copied out as its file, with the file's mode", async () => {
  const [file, link] = [join(folder, "behind"), join(folder, "link")];
  await writeFile(file, "secret");
  await chmod(file, 0o600);
  await symlink(file, link);
  await inDirection("out", LocalCapsule.make())(link, join(folder, "link-copy"));
  assert.equal(await modeAt(join(folder, "link-copy")), 0o600);
});

test("a capsule that lists what is below a link has nothing written there", async () => {
  const tree = await makeTree("lies");
  const outside = join(folder, "outside");
  await mkdir(outside);
  for (const permissions of ["lrwxrwxrwx", "-rw-r--r--", "drwxr-xr-x"]) {
    const { capsule, local } = LocalCapsule.make();
    local.madeUp.push(entryOf(`${tree}/way`, "lrwxrwxrwx", { symlinkTarget: outside }));
    local.madeUp.push(entryOf(`${tree}/way/in`, permissions, { symlinkTarget: "/etc/passwd" }));
    const copy = inDirection("out", { capsule });
    await assert.rejects(copy(tree, join(folder, `lies-${permissions}`)), /but not its folder/);
    assert.deepEqual(await readdir(outside), []);
  }
});

test("a capsule's archive writes nothing outside of the target", async () => {
  const outside = join(folder, "archive-outside");
  await mkdir(outside);
  await writeFile(join(outside, "secret"), "secret");
  const root: Member = { name: "./", kind: "5", mode: 0o755 };
  const way: Member = { name: "way", kind: "2", link: outside };
  const hostile: Record<string, Buffer> = {
    "..": tar(root, { name: "../pwned", content: "x" }),
    "behind a link": tar(root, way, { name: "way/pwned", content: "x" }),
    "behind a link that is a folder too": tar(
      root,
      way,
      { name: "way/", kind: "5" },
      { name: "way/pwned", content: "x" },
    ),
    "without its folder": tar(root, { name: "no/pwned", content: "x" }),
    "a hard link outside": tar(root, { name: "hard", kind: "1", link: "../archive-outside/secret" }),
    "a hard link to a link": tar(root, way, { name: "hard", kind: "1", link: "way" }),
    "no folder": tar({ name: "./", content: "x" }),
    "a pax name": tar(root, pax({ path: "a/../../pwned" }), { name: "a", content: "x" }),
    "a wrong number": tar(root, { name: "a", size: Buffer.from("9x") }),
    "a wrong record": tar(root, { name: "x", kind: "x", content: "99 path=a\n" }, { name: "a" }),
    "a sparse map without an end": tar(root, pax({ "GNU.sparse.major": "1" }), {
      name: "a",
      content: "1".repeat(2_000),
    }),
    "a cut": tar(root, { name: "a", content: "x".repeat(5_000) }).subarray(0, 2_000),
  };
  for (const [name, bytes] of Object.entries(hostile)) {
    const made = LocalCapsule.make(true);
    made.local.madeUpArchive = bytes;
    const tree = await makeTree(`archive-${name}`);
    const target = join(folder, `archive-to-${name}`);
    const seen = (await readdir(folder)).filter((entry) => !entry.startsWith("archive-to-"));
    await inDirection("out", made)(tree, target).then(
      () => assert.equal(name, "behind a link that is a folder too"),
      (error) => assert.match(String(error), /archive|folder|cut/, name),
    );
    assert.deepEqual(await readdir(outside), ["secret"], name);
    assert.deepEqual(
      (await readdir(folder)).filter((entry) => !entry.startsWith("archive-to-")),
      seen,
      name,
    );
  }
});

test("a sparse file comes out with its holes, and times are kept", async () => {
  const made = LocalCapsule.make(true);
  made.local.madeUpArchive = tar(
    { name: "./", kind: "5", mode: 0o755, mtime: 1_100_000_000 },
    pax({ "GNU.sparse.major": "1", "GNU.sparse.name": "sparse", "GNU.sparse.realsize": "1000000000" }),
    {
      name: "x",
      mtime: 1_000_000_000,
      content: Buffer.concat([Buffer.from("1\n4096\n3\n".padEnd(512, "\0")), Buffer.from("end")]),
    },
  );
  const target = join(folder, "sparse-out");
  await inDirection("out", made)(await makeTree("sparse-in"), target);
  const { size, blocks, mtimeMs } = await lstat(join(target, "sparse"));
  assert.deepEqual([size, blocks < 100, mtimeMs, (await lstat(target)).mtimeMs], [1e9, true, 1e12, 1.1e12]);
});

async function runCp({ local }: { local: LocalCapsule }, ...words: string[]): Promise<number> {
  const { wantsHelp: _, ...parsed } = parse(commands.cp!, ["--quiet", ...words]);
  const call: Call = { ...parsed, client: async () => local.client(), commands, version: async () => "0" };
  return await cp(call);
}

test("a capsule is given by its name, its id or the beginning of it, and a file with a colon by a path", async () => {
  const made = LocalCapsule.make();
  const [there, here] = [join(folder, "by-name"), join(folder, "a:b")];
  await writeFile(here, "mine");
  for (const capsule of [made.local.name, made.local.id, made.local.id.slice(0, 8)]) {
    await runCp(made, here, `${capsule}:${there}`);
    await runCp(made, `${capsule}:${there}`, `${here}-back`);
    assert.equal(await readFile(`${here}-back`, "utf8"), "mine");
    for (const path of [there, `${here}-back`]) await rm(path);
  }
  await assert.rejects(runCp(made, "other:/x", folder), /no capsule named "other"/);
  await assert.rejects(runCp(made, "a:b", `web:${there}`), /one side must be in a capsule/);
});

test("several sources of one name are refused before anything is sent", async () => {
  const made = LocalCapsule.make();
  const [target, ...sources] = ["same-target", "same-1", "same-2"].map((name) => join(folder, name));
  for (const path of [target!, ...sources]) await mkdir(path);
  for (const source of sources) await writeFile(join(source, "same"), source);
  const files = sources.map((source) => `${source}/same`);
  await assert.rejects(runCp(made, ...files, `web:${target}`), UsageError);
  await assert.rejects(runCp(made, `${sources[0]}/`, sources[0]!, `web:${target}`), UsageError);
  await assert.rejects(runCp(made, ...files.map((file) => `web:${file}`), target!), UsageError);
  assert.deepEqual(await readdir(target!), []);
  await runCp(made, ...sources, `web:${target}`);
  assert.deepEqual((await readdir(target!)).sort(), ["same-1", "same-2"]);
});

test("one source and several go into the folder behind a link with a slash after it", async () => {
  const made = LocalCapsule.make();
  const [target, link] = [join(folder, "behind-slash"), join(folder, "with-slash")];
  await mkdir(target);
  await symlink(target, link);
  const sources = ["one", "two"].map((name) => join(folder, name));
  for (const source of sources) await writeFile(source, "text");
  await runCp(made, sources[0]!, `web:${link}/`);
  assert.deepEqual(await readdir(target), ["one"]);
  await runCp(made, ...sources, `web:${link}/`);
  assert.deepEqual((await readdir(target)).sort(), ["one", "two"]);
});

test("hard links come out as links of one file, and take no room for each", async () => {
  const made = LocalCapsule.make(true);
  const hard = (name: string): Member => ({ name, kind: "1", link: "sparse" });
  made.local.madeUpArchive = tar(
    { name: "./", kind: "5", mode: 0o755 },
    pax({ "GNU.sparse.major": "1", "GNU.sparse.name": "sparse", "GNU.sparse.realsize": "100000000" }),
    {
      name: "x",
      mode: 0o640,
      content: Buffer.concat([Buffer.from("1\n0\n3\n".padEnd(512, "\0")), Buffer.from("abc")]),
    },
    ...["first", "second", "second", "sparse"].map(hard),
  );
  const tree = await makeTree("hard-in");
  const target = join(folder, "hard-out/hard-in");
  await mkdir(join(folder, "hard-out"));
  const copy = inDirection("out", made);
  for (const _ of ["new", "replaced"]) await copy(tree, join(folder, "hard-out"));
  const names = await readdir(target);
  assert.deepEqual(names.sort(), ["first", "second", "sparse"]);
  const found = await Promise.all(names.map((name) => lstat(join(target, name))));
  assert.deepEqual(
    found.map(({ ino, nlink, size, mode }) => [ino, nlink, size, mode & 0o777]),
    found.map(() => [found[0]!.ino, 3, 1e8, 0o640]),
  );
});
