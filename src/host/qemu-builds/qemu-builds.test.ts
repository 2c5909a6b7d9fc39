/** QEMU's builds, with qemu-img as the program: it prints QEMU's version, needs libraries, and is small. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import {
  chmod,
  copyFile,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  symlink,
  truncate,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { after, afterEach, beforeEach, test } from "node:test";
import { SmallDisk } from "../../../test/small-disk.ts";
import { findProgram, programFilesOf } from "../../vmm/jail/program-files.ts";
import type { QemuProgram } from "../../vmm/machine/qemu-program.ts";
import { qemuVersion } from "../../vmm/machine/qemu-version.ts";
import { Paths } from "../disk/paths.ts";
import { keepBuild } from "./build-folder.ts";
import { buildNames, sourcesOf } from "./build-sources.ts";
import { QemuBuilds } from "./qemu-builds.ts";

const real = findProgram("qemu-img") ?? assert.fail("qemu-img is not installed");
const version = await qemuVersion([real]);
const next = version.replace(/\d$/, (digit) => String((Number(digit) + 1) % 10));

let folder: string;
let program: string;
let paths: Paths;
let problems: string[];

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "qemu-builds-"));
  program = join(folder, "bin/qemu-system-x86_64");
  await mkdir(dirname(program));
  paths = new Paths(join(folder, "data"));
  paths.create();
  problems = [];
  await copyFile(real, program);
});
afterEach(() => rm(folder, { recursive: true }));

function open(accept: (version: string) => void = () => {}): Promise<QemuBuilds> {
  const onProblem = (what: string, error: unknown) => problems.push(`${what}: ${String(error)}`);
  return QemuBuilds.open({ paths, program, accept, onProblem });
}

/** As a package manager does it: another file takes the name. */
async function upgrade(): Promise<void> {
  const text = (await readFile(real)).toString("latin1").replaceAll(version, next);
  await install(Buffer.from(text, "latin1"));
}

async function install(content: Buffer | string): Promise<void> {
  await writeFile(`${program}.new`, content);
  await chmod(`${program}.new`, 0o755);
  await rename(`${program}.new`, program);
}

async function kept(): Promise<string[]> {
  return (await readdir(paths.qemuBuilds)).filter((name) => name !== "sources.json").sort();
}

test("the installed program is copied with what it needs, and the copy runs without the original", async () => {
  const { current } = await open();
  assert.deepEqual(problems, []);
  assert.deepEqual(await kept(), [current.build]);
  assert.deepEqual(current.readOnly, [join(paths.qemuBuilds, current.build!)]);
  const copy = join(folder, "moved");
  await rename(program, copy);
  const [loader, ...args] = current.command;
  const listed = execFileSync(loader, ["--list", ...args.slice(0, 3)], { encoding: "utf8" });
  const outside = [...listed.matchAll(/ => (\/\S+)/g)].filter(([, path]) => !path!.startsWith(paths.data));
  assert.deepEqual(outside, []);
  assert.equal(await qemuVersion(current.command), version);
  assert.deepEqual(problems, []);
});

test("firmware, libraries and accelerators' modules are copied; other processors' files and other modules are not", async () => {
  const { libraries } = await programFilesOf(program);
  const [library] = libraries;
  const lib = join(folder, "lib");
  await mkdir(join(lib, "qemu"), { recursive: true });
  await mkdir(join(folder, "share/qemu/keymaps"), { recursive: true });
  await copyFile(library!, join(lib, basename(library!)));
  const names = [
    "lib/qemu/accel-tcg-x86_64.so",
    "lib/qemu/hw-display-qxl.so",
    "share/qemu/qboot.rom",
    "share/qemu/bios.bin",
    "share/qemu/skiboot.lid",
  ];
  for (const name of names) await writeFile(join(folder, name), "x");
  const { LD_LIBRARY_PATH } = process.env;
  process.env.LD_LIBRARY_PATH = lib;
  try {
    const sources = await sourcesOf(program);
    const own = new Set(libraries.map((path) => `lib/${basename(path)}`));
    const copied = sources.map(({ name }) => name).filter((name) => !own.has(name));
    assert.deepEqual(copied, [
      "bin/ld.so",
      "bin/qemu-system-x86_64",
      "lib/qemu/accel-tcg-x86_64.so",
      "share/qemu/bios.bin",
      "share/qemu/qboot.rom",
    ]);
    assert.ok(sources.some(({ path }) => path === join(lib, basename(library!))));
    assert.equal(sources.length, copied.length + libraries.length);
  } finally {
    if (LD_LIBRARY_PATH === undefined) delete process.env.LD_LIBRARY_PATH;
    else process.env.LD_LIBRARY_PATH = LD_LIBRARY_PATH;
  }
});

test("the next start neither reads nor resolves the installed files again", async () => {
  const { build } = (await open()).current;
  const { PATH } = process.env;
  process.env.PATH = ""; // without ldd, the same files would make up another build
  try {
    assert.equal((await open()).current.build, build);
    await rm(join(paths.qemuBuilds, "sources.json"));
    assert.notEqual((await open()).current.build, build);
  } finally {
    process.env.PATH = PATH;
  }
});

test("an upgrade is noticed at the next refresh; the old build stays for what it has saved", async () => {
  const builds = await open();
  const before = builds.current;
  await builds.refresh();
  assert.equal(builds.current, before);
  await upgrade();
  await builds.refresh();
  assert.equal(builds.current.version, next);
  assert.equal(builds.find({ qemu: version, qemuBuild: before.build! }), before);
  assert.equal(builds.find({ qemu: version }), before, "saved by an earlier release");
  assert.equal(builds.find({ qemu: version, qemuBuild: "f".repeat(64) }), before, "the exact one is lost");
  assert.equal(builds.find({ qemu: "1.0.0" }), undefined);
  assert.equal(await qemuVersion(before.command), version);
  const after = await open();
  assert.equal(after.current.build, builds.current.build);
  assert.equal(after.find({ qemu: version })?.build, before.build);
});

test("a build that comes from another host is found once it is taken, and one that is not there is an error", async () => {
  const builds = await open();
  const script = join(folder, "other");
  await writeFile(script, `#!/bin/sh\necho QEMU emulator version ${next}\n`, { mode: 0o755 });
  const { build } = await keepBuild(paths.qemuBuilds, [{ path: script, name: buildNames.program }]);
  const saved = { qemu: next, qemuBuild: build };
  assert.equal(builds.find(saved), undefined);
  await builds.take(build);
  const found = builds.find(saved);
  assert.equal(found?.build, build);
  await builds.take(build);
  assert.equal(builds.find(saved), found, "VMs are known by the program that they run in");
  await assert.rejects(builds.take("f".repeat(64)), /there is no QEMU build ffff/);
});

test("a program that is overwritten in place is noticed, and so is its firmware", async () => {
  const firmware = join(folder, "share/qemu/bios.bin");
  await mkdir(dirname(firmware), { recursive: true });
  await writeFile(firmware, "one");
  const builds = await open();
  const before = builds.current.build;
  await writeFile(firmware, "other");
  await builds.refresh();
  assert.notEqual(builds.current.build, before);
  assert.equal(builds.current.version, version);
  assert.equal(builds.find({ qemu: version, qemuBuild: before! })?.build, before);
  assert.equal(builds.find({ qemu: version }), builds.current);
  await writeFile(program, (await readFile(real)).toString("latin1").replaceAll(version, next), "latin1");
  await builds.refresh();
  assert.notEqual(builds.current.build, before);
  assert.equal(builds.current.version, next);
});

test("what cannot be used does not replace a copy, is reported once, and is not tried again at each create", async () => {
  const builds = await open((found) => assert.notEqual(found, next, "too old for a jail"));
  const before = builds.current;
  await install("not a program");
  for (let create = 0; create < 3; create++) await builds.refresh();
  assert.equal(builds.current, before);
  assert.equal(problems.length, 1);
  await rm(program);
  for (let create = 0; create < 3; create++) await builds.refresh();
  assert.equal(builds.current, before);
  assert.equal(problems.length, 2);
  await upgrade();
  await builds.refresh();
  assert.equal(builds.current, before);
  assert.match(problems.at(-1)!, /too old for a jail/);
});

test("builds that nothing needs are removed; those that are needed by hash or by version stay", async () => {
  const first = await open();
  const old = { qemu: version, qemuBuild: first.current.build! };
  await upgrade();
  const builds = await open();
  assert.deepEqual(await builds.trim([old]), []);
  assert.deepEqual(await builds.trim([{ qemu: version }]), []);
  assert.deepEqual(await builds.trim([{ qemu: next }, { qemu: "9.0.0" }]), [old.qemuBuild]);
  assert.deepEqual(await kept(), [builds.current.build]);
  assert.equal(builds.find(old), undefined);
});

test("a folder that is a link belongs to another data folder, and nothing in it is removed", async () => {
  const first = await open();
  await upgrade();
  await rename(paths.qemuBuilds, join(folder, "elsewhere"));
  await symlink(join(folder, "elsewhere"), paths.qemuBuilds);
  const builds = await open();
  assert.deepEqual(await builds.trim([]), []);
  assert.deepEqual(await kept(), [first.current.build, builds.current.build].sort());
});

test("a damaged copy of the installed program is made anew, and unfinished copies are removed", async () => {
  const { current } = await open();
  await truncate(current.command[0], 10);
  await rename(join(paths.qemuBuilds, "sources.json"), join(folder, "sources.json"));
  const unfinished = join(paths.qemuBuilds, "new-0123456789abcdef");
  await writeFile(unfinished, "");
  const again = await open();
  assert.equal(again.current.build, current.build);
  assert.equal(await qemuVersion(again.current.command), version);
  assert.match(problems.join(), /^a kept QEMU is damaged: .*ld\.so has 10 bytes$/);
  assert.deepEqual(await kept(), [current.build]);
});

/** Changes a byte, and neither the size nor a time that a start looks at. */
async function flipByte(path: string): Promise<void> {
  const content = await readFile(path);
  content[1_000]! ^= 1;
  await writeFile(path, content);
}

test("a copy with another byte is refused, each time with the file's name, and stays; others are used", async () => {
  const old = { qemu: version, qemuBuild: (await open()).current.build! };
  await upgrade();
  const copied = join(paths.qemuBuilds, old.qemuBuild, buildNames.program);
  const content = await readFile(copied);
  await flipByte(copied);
  const builds = await open();
  assert.deepEqual(problems, [], "a start reads no file of it");
  const refused = {
    code: "internal_error",
    message: `the copy of QEMU ${version} that it needs is damaged, and can be put back from a backup: ${copied} has other bytes than were copied`,
  };
  await assert.rejects(builds.findSound(old), refused);
  await assert.rejects(builds.findSound(old), refused);
  assert.deepEqual(problems, [`a kept QEMU is damaged: Error: ${copied} has other bytes than were copied`]);
  assert.equal(await builds.findSound({ qemu: next }), builds.current);
  assert.deepEqual(await builds.trim([old]), []);
  assert.deepEqual(await kept(), [builds.current.build, old.qemuBuild].sort());
  await writeFile(copied, content);
  const later = await open();
  assert.equal((await later.findSound(old))?.build, old.qemuBuild, "put back");
});

test("a copy of the installed program with another byte is made anew at its first use", async () => {
  const { current } = await open();
  const saved = { qemu: version, qemuBuild: current.build! };
  await flipByte(join(paths.qemuBuilds, current.build!, buildNames.program));
  const builds = await open();
  const damaged = builds.current;
  const found = await Promise.all([builds.findSound(saved), builds.findSound(saved)]);
  assert.deepEqual(found, [builds.current, builds.current]);
  assert.notEqual(builds.current, damaged);
  assert.equal(builds.current.build, current.build);
  assert.equal(await qemuVersion(builds.current.command), version);
  assert.equal(problems.length, 1);
  await flipByte(join(paths.qemuBuilds, current.build!, buildNames.program));
  const last = await open();
  await rm(program);
  await assert.rejects(last.findSound(saved), { code: "internal_error" });
});

test("a manifest of another build is damage", async () => {
  const first = (await open()).current.build!;
  await upgrade();
  const builds = await open();
  const manifests = [first, builds.current.build!].map((build) => join(paths.qemuBuilds, build, "manifest.json"));
  const folders = manifests.map(dirname);
  await rm(folders[0]!, { recursive: true });
  await rename(folders[1]!, folders[0]!);
  const later = await open();
  await assert.rejects(later.findSound({ qemu: next, qemuBuild: first }), /manifest\.json is that of another build/);
});

test("a program that cannot be copied is run from where it is until it is replaced; then nothing it runs is saved", async () => {
  const script = (said: string) => `#!/bin/sh\necho QEMU emulator version ${said}\n`;
  await install(script("10.0.2"));
  const builds = await open();
  const installed: Partial<QemuProgram> = { version: "10.0.2", command: [program] };
  assert.deepEqual({ ...builds.current, readOnly: 0 }, { ...installed, readOnly: 0 });
  assert.match(problems.join(), /cannot be kept.*is a script/);
  await builds.requireKept({ qemu: "10.0.2" }, "capsule x");
  await install(script("10.0.3"));
  await assert.rejects(builds.requireKept({ qemu: "10.0.2" }, "capsule x"), {
    code: "conflict",
    message: "capsule x runs in QEMU 10.0.2, which this machine no longer has",
  });
  assert.equal(builds.current.version, "10.0.3");
  await install("not a program");
  await assert.rejects(builds.refresh(), { message: `${program} was replaced and cannot be used` });
});

const disk = new SmallDisk();
const skip = disk.mount() ?? false;
after(() => disk.unmount());

test("while its disk is too full for a copy no pause is permitted, and the copy is made as soon as it fits", {
  skip,
}, async () => {
  paths = new Paths(join(disk.path, "data"));
  paths.create();
  disk.fill(50 << 20);
  const builds = await open();
  assert.deepEqual([builds.current.version, builds.current.build], [version, undefined]);
  assert.match(problems.join(), /cannot be kept.*keeping a copy of QEMU needs \d+ MiB of disk/);
  await assert.rejects(builds.requireKept({ qemu: version }, "capsule x"), { code: "no_space" });
  assert.deepEqual(await kept(), []);
  disk.free();
  const pauses = ["capsule x", "capsule y"].map(async (what) => {
    await builds.requireKept({ qemu: version }, what);
    return builds.current;
  });
  const [first, second] = await Promise.all(pauses);
  assert.equal(first, second, "two pauses at once share one copy");
  assert.deepEqual(await kept(), [builds.current.build]);
});

test("a build that another copier has finished meanwhile is used, and stays", async () => {
  const [first, go] = [join(folder, "first"), join(folder, "go")];
  await install(
    `#!/bin/sh
mkdir ${first} 2>/dev/null || until [ -e ${go} ]; do sleep 0.01; done
echo QEMU emulator version 10.0.2
`,
  );
  const sources = [{ path: program, name: buildNames.program }];
  const copying = [1, 2].map(() => keepBuild(paths.qemuBuilds, sources));
  const { build } = await Promise.race(copying);
  const { ino } = await stat(join(paths.qemuBuilds, build));
  await writeFile(go, "");
  await Promise.all(copying);
  assert.equal((await stat(join(paths.qemuBuilds, build))).ino, ino, "VMs may run in it");
  assert.deepEqual(await kept(), [build]);
});

test("a missing program and one that is not accepted are errors", async () => {
  const refuse = () => {
    throw new Error("too old");
  };
  await assert.rejects(open(refuse), /too old/);
  await rm(program);
  await assert.rejects(open(), /qemu-system-x86_64 is not installed/);
});
