/** Which bases are made, used, removed and kept. */
import assert from "node:assert/strict";
import { mkdir, mkdtemp, readdir, rm, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, test } from "node:test";
import { CountedSlots } from "../../../test/fakes/counted-slots.ts";
import { waitFor } from "../../../test/wait-for.ts";
import type { Machine } from "../../vmm/vmm.ts";
import { FairSlots } from "../capacity/fair-slots.ts";
import { writeManifest } from "../disk/checkpoint-folder.ts";
import { imageLayer, type Saved } from "../disk/manifest.ts";
import { Paths } from "../disk/paths.ts";
import { type References, readReferences } from "../disk/references.ts";
import { BaseTrimmer, surplus } from "./base-trimmer.ts";
import { Bases, keyOf, lineOfBases } from "./bases.ts";
import type { Image } from "./images.ts";

const name = "minimal";
const shape = { vcpus: 1, memoryMb: 512 };
const hashOf = (build: number) => String(build).repeat(64);
const current = { name, hash: hashOf(5) } as Image;

let paths: Paths;
beforeEach(async () => {
  paths = new Paths(await mkdtemp(join(tmpdir(), "bases-")));
  paths.create();
});
afterEach(() => rm(paths.data, { recursive: true }));

/** Nothing but these folders is needed. */
function needed(...folders: string[]): References {
  return { needed: new Set(folders), machines: [], damaged: [] };
}

const machine: Machine = {
  ...{ qemu: "10.0.2", accelerator: "tcg", cpu: "max,-erms", devices: ["ports:1"], vcpus: 1, memoryMb: 512 },
};

test("other kernel options make another base of the same build", () => {
  const keys = ["quiet", "quiet psi=0", "quiet"].map((options) => keyOf(current, machine, options));
  assert.equal(new Set(keys).size, 2);
  for (const key of keys) assert.match(key, new RegExp(`^${name}-${current.hash.slice(0, 12)}-1x512-[A-Za-z0-9._]+$`));
});

test("the longest name of an image leaves a folder's name for its bases", () => {
  const image = { name: "a".repeat(32), hash: hashOf(5) } as Image;
  const large: Machine = {
    ...{ qemu: "10.10.10", qemuBuild: "b".repeat(64), accelerator: "kvm", cpu: "host", cpuFeatures: "avx" },
    ...{ devices: ["ports:1"], vcpus: 16, memoryMb: 131_072 },
  };
  assert.match(paths.base(`${keyOf(image, large, "quiet")}-again-${"0".repeat(8)}`), /a{32}-5{12}-16x131072-kvm_host/);
});

test("other features of the processor make another base", () => {
  const machine: Machine = {
    ...{ qemu: "10.0.2", accelerator: "kvm", cpu: "host", devices: ["ports:1"], vcpus: 1, memoryMb: 512 },
  };
  const keys = ["avx sse", "sse", "avx sse"].map((cpuFeatures) => keyOf(current, { ...machine, cpuFeatures }, ""));
  assert.equal(new Set(keys).size, 2);
});

describe("a base that exists", () => {
  const image = { ...current, manifest: { files: { "root.ext4": { sha256: hashOf(5) } } } } as Image;
  const machine: Machine = {
    ...{ qemu: "10", accelerator: "tcg", cpu: "max", tscKhz: 2_000_000, devices: ["ports:1"], vcpus: 1, memoryMb: 512 },
  };
  const key = keyOf(image, machine, "");

  async function save(name: string, agent: Saved["agent"] = { protocol: 1, grows: true }): Promise<string> {
    const folder = paths.base(name);
    await mkdir(folder);
    await writeFile(join(folder, "state"), "devices");
    const layers = [imageLayer(image.name, image.hash, null)];
    const saved = { kind: "base", machine, layers, agent, revision: null, diskLayer: null } as const;
    await writeManifest(folder, { ...saved, frozen: true }, ["state"], { hashAll: true });
    return folder;
  }

  function basesOf(tscKhz: number, isSound = (_folder: string) => true) {
    const vmm = { kernelOptions: "", machine: () => ({ ...machine, tscKhz }) };
    const line = { run: () => Promise.reject(new Error("another is made")) };
    return new Bases({ paths, images: { current: [image] }, spare: 8, line, vmm, isSound } as never);
  }

  function find(...of: Parameters<typeof basesOf>) {
    return basesOf(...of).ensure(image, { vcpus: 1, memoryMb: 512 }, { owner: "a" });
  }

  test("is used unless it was found damaged or the time stamp counter has another rate now; then another is made", async () => {
    const folder = await save(key);
    assert.equal((await find(2_000_400)).folder, folder);
    await assert.rejects(find(2_000_600), /another is made/);
    await assert.rejects(
      find(2_000_400, () => false),
      /another is made/,
    );
  });

  test("of another key is not used, whose name begins alike", async () => {
    for (const name of [`${key}_1-0123abcd`, `${key}-0123abcde`, `${key}0-0123abcd`]) await save(name);
    await assert.rejects(find(2_000_000), /another is made/);
  });

  test("tells whether its image's agent can make a disk larger; one that does not say it is not used", async () => {
    for (const grows of [true, false]) {
      await save(`${key}-again-${grows}`, { protocol: 1, grows });
      const bases = basesOf(2_000_000);
      assert.equal(bases.canGrow(image), undefined);
      using _base = await bases.ensure(image, shape, { owner: "a" });
      assert.equal(bases.canGrow(image), grows);
      await rm(paths.base(`${key}-again-${grows}`), { recursive: true });
    }
    await save(key, { protocol: 1 });
    await assert.rejects(find(2_000_000), /another is made/);
  });

  test("is used before the one that it replaced, whatever their names, also after a restart", async () => {
    const names = [`${key}-0123abcd`, `${key}-again-2`, key];
    const [first, second, third] = (await Promise.all(names.map((each) => save(each)))) as [string, string, string];
    const date = (seconds: number[]) =>
      Promise.all([first, second, third].map((folder, index) => utimes(folder, seconds[index]!, seconds[index]!)));
    await date([1, 2, 3]);
    assert.equal((await find(2_000_000)).folder, third);
    await date([1, 3, 2]);
    assert.equal((await find(2_000_000)).folder, second);
    assert.equal((await find(2_000_000, (folder) => folder !== second)).folder, third);
  });
});

test("beside a capsule whose record is damaged, only bases that this daemon made are removed", async () => {
  for (const name of ["older", "old-build", "made", "made-needed"]) await mkdir(paths.base(name));
  const damaged = paths.capsule(`cl-${"0".repeat(25)}`);
  await mkdir(damaged, { recursive: true });
  await writeFile(join(damaged, "capsule.json"), "");
  const trimmer = new BaseTrimmer({
    ...{ paths, spare: 0, onRemove: async () => {} },
    isCurrent: (name) => name !== "old-build",
    references: async () => ({
      ...needed("bases/made-needed"),
      damaged: (await readReferences(paths, ["capsules"])).damaged,
    }),
  });
  for (const name of ["made", "made-needed"]) trimmer.noteMade(name);
  await trimmer.trim();
  assert.deepEqual((await readdir(paths.bases)).sort(), ["made-needed", "old-build", "older"]);
});

test("unused bases of other builds of the image or QEMU are removed, however few there are", async () => {
  const base = (build: number, qemu: string) =>
    keyOf({ name, hash: hashOf(build) } as Image, { ...machine, qemuBuild: qemu.repeat(64) }, "quiet");
  const names = { needed: base(3, "a"), oldImage: base(4, "b"), oldQemu: base(5, "a"), current: base(5, "b") };
  for (const key of Object.values(names)) await mkdir(paths.base(key));
  const vmm = { machine: () => ({ ...machine, qemuBuild: "b".repeat(64) }) };
  const removed: string[] = [];
  const references = async () => needed(`bases/${names.needed}`);
  const onRemove = async (folder: string) => void removed.push(folder);
  const bases = new Bases({ paths, images: { current: [current] }, spare: 8, vmm, references, onRemove } as never);
  await bases.trim();
  assert.deepEqual(await readdir(paths.bases), [names.needed, names.current]);
  assert.deepEqual(removed.toSorted(), [names.oldImage, names.oldQemu].map((name) => paths.base(name)).toSorted());
});

test("a base whose users cannot be ended stays", async () => {
  await mkdir(paths.base("old"));
  const onRemove = () => Promise.reject(new Error("a process does not end"));
  const references = async () => needed();
  const vmm = { machine: () => machine };
  const bases = new Bases({ paths, images: { current: [current] }, spare: 0, vmm, references, onRemove } as never);
  await assert.rejects(bases.trim(), /does not end/);
  assert.deepEqual(await readdir(paths.bases), ["old"]);
});

/** Bases of any shape, of which none can be booted: `made` has those that were tried. */
function unbootable(options: object = {}) {
  const made: string[] = [];
  const vmm = {
    kernelOptions: "",
    machine: (vcpus: number, memoryMb: number) => ({
      ...{ vcpus, memoryMb, qemu: "10", accelerator: "tcg", cpu: "max", devices: [] },
    }),
  };
  const space = {
    orReclaim: (reserve: () => unknown) => reserve(),
    reserve: (_: number, what: string) => assert.fail(`${made.push(what)} tried`),
  };
  const own = {
    paths,
    images: { current: [current] },
    spare: 8,
    vmm,
    space,
    references: async () => needed(),
    onRemove: async () => {},
  };
  return { made, bases: new Bases({ ...own, ...options } as never) };
}

test("each owner that needs a base has its own turn to make it, and one only", async () => {
  const owners: string[] = [];
  const line = { run: (owner: string) => owners.push(owner) && new Promise(() => {}) };
  const { bases } = unbootable({ line });
  for (const owner of ["a", "a", "b"]) void bases.ensure(current, shape, { owner });
  void bases.ensure(current, { vcpus: 2, memoryMb: 512 }, { owner: "a" });
  await waitFor("three boots have begun", () => owners.length === 3);
  assert.deepEqual(owners.toSorted(), ["a", "a", "b"]);
});

test("an owner boots one base at a time, and at most two are booted in all", async () => {
  const begun: string[] = [];
  const over = Promise.withResolvers<void>();
  const line = lineOfBases();
  const works = ["a", "a", "b", "b", "c"].map((owner) =>
    line.run(owner, () => {
      begun.push(owner);
      return over.promise;
    }),
  );
  assert.ok(begun.length <= 2);
  assert.deepEqual(begun, ["a", "b"].slice(0, begun.length));
  over.resolve();
  await Promise.all(works);
});

describe("a base that waits for its turn", () => {
  /** The only slot is taken until `free` is called; two callers of an owner wait for a base. */
  async function waiting() {
    const line = new CountedSlots(1);
    const slot = Promise.withResolvers<void>();
    const taken = line.run("other", () => slot.promise);
    const { bases, made } = unbootable({ line });
    const callers = [new AbortController(), new AbortController()] as const;
    const results = callers.map(({ signal }) => bases.ensure(current, shape, { owner: "a", signal }));
    for (const result of results) result.catch(() => {});
    await line.lastAsked("a");
    const free = async () => {
      slot.resolve();
      await taken;
      await line.run("a", async () => {}); // behind the base
    };
    return { bases, made, callers, results, free };
  }

  test("is not booted when its last caller has left", async () => {
    const { made, callers, results, free } = await waiting();
    for (const caller of callers) caller.abort(new Error("destroyed"));
    for (const result of results) await assert.rejects(result, /destroyed/);
    await free();
    assert.deepEqual(made, []);
  });

  test("is booted while another caller waits", async () => {
    const { made, callers, results, free } = await waiting();
    callers[0].abort(new Error("destroyed"));
    await assert.rejects(results[0]!, /destroyed/);
    await Promise.all([assert.rejects(results[1]!, /1 tried/), free()]);
    assert.equal(made.length, 1);
  });

  test("is booted for a caller that has come when the others were leaving", async () => {
    const { bases, made, callers, free } = await waiting();
    for (const caller of callers) caller.abort(new Error("destroyed"));
    const next = bases.ensure(current, shape, { owner: "a" });
    await Promise.all([assert.rejects(next, /1 tried/), free()]);
    assert.equal(made.length, 1);
  });

  test("is not booted, though a slot is free, when its caller left while its folder was looked for", async () => {
    const line = new FairSlots(1);
    const { bases, made } = unbootable({ line });
    const caller = new AbortController();
    const result = bases.ensure(current, shape, { owner: "a", signal: caller.signal });
    caller.abort(new Error("destroyed"));
    await assert.rejects(result, /destroyed/);
    await bases.trim(); // reads the folder too
    await line.run("a", async () => {});
    assert.deepEqual(made, []);
  });
});

describe("before a base is made", () => {
  /** A complete base, last used at this second of the epoch. */
  async function saved(image: Image, memoryMb: number, usedSec: number): Promise<string> {
    const own: Machine = { qemu: "10", accelerator: "tcg", cpu: "max", devices: [], vcpus: 1, memoryMb };
    const name = keyOf(image, own, "");
    await mkdir(paths.base(name));
    await writeFile(join(paths.base(name), "state"), "devices");
    const layers = [imageLayer(image.name, image.hash, null)];
    const about = {
      kind: "base",
      machine: own,
      layers,
      agent: { protocol: 1, grows: true },
      revision: null,
      diskLayer: null,
    } as const;
    await writeManifest(paths.base(name), { ...about, frozen: true }, ["state"], { hashAll: true });
    await utimes(paths.base(name), usedSec, usedSec);
    return name;
  }

  test("those that nothing needs are removed beyond the spare ones, not those in use", async () => {
    const [old, stoodOn, recent, used] = [
      await saved(current, 512, 1),
      await saved(current, 513, 2),
      await saved(current, 514, 4),
      await saved(current, 515, 3),
    ];
    const removed: string[] = [];
    const { bases } = unbootable({
      ...{ spare: 1, isSound: () => true },
      references: async () => needed(`bases/${stoodOn}`),
      onRemove: async (folder: string) => removed.push(folder),
    });
    const making = () => assert.rejects(bases.ensure(current, { vcpus: 9, memoryMb: 512 }, { owner: "a" }), /tried/);
    const held = await bases.ensure(current, { vcpus: 1, memoryMb: 515 }, { owner: "a" });
    await making();
    assert.deepEqual((await readdir(paths.bases)).sort(), [stoodOn, recent, used].sort());
    held[Symbol.dispose]();
    await new Promise(setImmediate);
    await making();
    assert.deepEqual((await readdir(paths.bases)).sort(), [stoodOn, used].sort());
    assert.deepEqual(removed, [paths.base(old), paths.base(recent)]);
    assert.deepEqual(await readdir(paths.work), []);
  });

  test("one that is held stays, and one that is being removed is gone when it is held", async () => {
    const name = await saved(current, 512, 1);
    const removing = Promise.withResolvers<void>();
    const goOn = Promise.withResolvers<void>();
    const onRemove = () => {
      removing.resolve();
      return goOn.promise;
    };
    const { bases } = unbootable({ spare: 0, isSound: () => true, onRemove });
    const first = await bases.hold(name);
    await bases.trim();
    assert.deepEqual(await readdir(paths.bases), [name]);
    first[Symbol.dispose]();
    await new Promise(setImmediate);
    const trimmed = bases.trim();
    await removing.promise;
    const second = bases.hold(name);
    goOn.resolve();
    using _held = await second;
    assert.deepEqual(await readdir(paths.bases), []);
    await trimmed;
    await saved(current, 512, 1);
    await bases.trim();
    assert.deepEqual(await readdir(paths.bases), [name]);
  });

  test("one that is used again while others are removed stays", async () => {
    for (const memoryMb of [512, 513]) await saved(current, memoryMb, 1);
    const use = (memoryMb: number) => bases.ensure(current, { vcpus: 1, memoryMb }, { owner: "a" });
    const removed: string[] = [];
    const onRemove = async (folder: string) => {
      removed.push(folder);
      void use(folder.includes("1x512") ? 513 : 512);
    };
    const { bases } = unbootable({ spare: 0, isSound: () => true, onRemove });
    for (const memoryMb of [512, 513]) (await use(memoryMb))[Symbol.dispose]();
    await new Promise(setImmediate);
    await bases.trim();
    assert.equal(removed.length, 1);
    assert.equal((await readdir(paths.bases)).length, 1);
  });

  test("one whose use ends during the removal stays: its capsule may have been written after the look for those needed", async () => {
    await saved(current, 512, 1);
    const looked = Promise.withResolvers<References>();
    const begun = Promise.withResolvers<void>();
    const references = () => {
      begun.resolve();
      return looked.promise;
    };
    const { bases } = unbootable({ spare: 0, isSound: () => true, references });
    const held = await bases.ensure(current, shape, { owner: "a" });
    const trimming = bases.trim();
    await begun.promise;
    held[Symbol.dispose]();
    await new Promise(setImmediate);
    looked.resolve(needed());
    await trimming;
    assert.equal((await readdir(paths.bases)).length, 1);
    await bases.trim();
    assert.deepEqual(await readdir(paths.bases), []);
  });
});

test("the owner with the most spare bases loses its least recently used ones first", () => {
  const base = (name: string, usedMs: number) => ({ name, owner: name[0]!, usedMs });
  const many = [5, 6, 7, 8].map((usedMs) => base(`a${usedMs}`, usedMs));
  const few = [base("b1", 1), base("c2", 2)];
  assert.deepEqual(surplus([...few, ...many], 4), ["a5", "a6"]);
  assert.deepEqual(surplus([...few, ...many], 2), ["a5", "a6", "a7", "b1"]);
  assert.deepEqual(surplus(few, 2), []);
});
