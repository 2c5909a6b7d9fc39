/** The order of the host's steps, with a VM that is no process. Real ones: test/conformance and test/faults. */
import assert from "node:assert/strict";
import { existsSync, mkdirSync, mkdtempSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { FakeVm } from "../../test/fakes/fake-vm.ts";
import type { Agent } from "../agent/agent.ts";
import { HostMemory } from "./capacity/host-memory.ts";
import { writeCapsule } from "./disk/capsule-folder.ts";
import { diskLayerOf, parentHash, writeManifest } from "./disk/checkpoint-folder.ts";
import { imageLayer } from "./disk/manifest.ts";
import { Paths } from "./disk/paths.ts";
import type { Connect } from "./guest.ts";
import { ImageStore } from "./images/image-store.ts";
import type { Image } from "./images/images.ts";
import { LocalHost } from "./local-host.ts";
import type { Vmms } from "./qemu-builds/vmms.ts";

const id = "cl-1";
const image = { name: "minimal", hash: "ab" };
const agent = { awake: true, closed: new Promise(() => {}), wake: async () => {}, close() {} } as unknown as Agent;

interface Fixture {
  host: LocalHost;
  paths: Paths;
  vm: FakeVm;
  /** Folders that were reported. */
  damages: string[];
  /** How many saved machines each trim of QEMU's builds was told. */
  trimmed: number[];
}

/** A host with one paused capsule, whose guest's kernel writes to the disk layer when it is resumed. */
async function hostOfPaused(t: TestContext, connect: Connect = async () => agent): Promise<Fixture> {
  const data = mkdtempSync(join(tmpdir(), "local-host-"));
  t.after(() => rmSync(data, { recursive: true }));
  const paths = new Paths(data);
  const [folder, base] = [paths.capsule(id), paths.base("b")];
  const [checkpoint, layer, files] = [join(folder, "checkpoint"), join(folder, "disk.qcow2"), join(data, "file")];
  for (const path of [checkpoint, base]) mkdirSync(path, { recursive: true });
  for (const path of [layer, files, join(base, "memory"), join(checkpoint, "state")]) writeFileSync(path, "content");
  const vm = new FakeVm("");
  const { machine } = vm.spec;
  const layers = [imageLayer(image.name, image.hash, null)];
  const about = { machine, agent: { protocol: 1 }, layers, frozen: true } as const;
  const based = { ...about, kind: "base", revision: null, diskLayer: null } as const;
  const parent = await writeManifest(base, based, ["memory"], { hashAll: true });
  await writeCapsule(folder, { parent: "bases/b", parentSha256: parentHash(parent), image, machine });
  const saved = { ...about, kind: "pause", revision: 7, diskLayer: diskLayerOf(layer) } as const;
  await writeManifest(checkpoint, saved, ["state"], { hashAll: false });
  vm.resume = async () => utimesSync(layer, 4_000_000_000, 4_000_000_000);
  const damages: string[] = [];
  const trimmed: number[] = [];
  const vmm = {
    machine: () => machine,
    findBelow: async () => [],
    trim: async (saved: unknown[]) => {
      trimmed.push(saved.length);
      return [];
    },
    hasWarmProcesses: false,
    onReplaced() {},
    closest: async () => machine,
    restore: async () => vm,
    find: async () => [],
    reap: async () => {},
  } as unknown as Vmms;
  const built = { ...image, kernel: files, initrd: files, root: files } as Image;
  const minimum = { key: { origin: { kind: "base", name: "minimal" }, shape: { vcpus: 1, memoryMb: 128 } }, size: 0 };
  const onFailure = (error: unknown) => assert.fail(String(error));
  const host = new LocalHost({
    ...{
      paths,
      vmm,
      images: new ImageStore(data, [built]),
      connect,
      mergeLayer: async () => {},
      step: () => {},
    },
    ...{ bootMs: 60_000, wakeMs: 60_000, silenceMs: 60_000, concurrentStarts: 1, spareBases: 0, diskReserveBytes: 0 },
    onSilentBoot: () => {},
    onDamage: (folder: string) => damages.push(folder),
    memory: new HostMemory({ reserveBytes: 0 }),
    missing: async () => [],
    warm: {
      pool: { newId: () => id, budgetBytes: 0, minimum, onFailure },
      processes: { maxCount: 0, budgetBytes: 0, onFailure },
    },
  } as ConstructorParameters<typeof LocalHost>[0]);
  t.after(() => host.close());
  return { host, paths, vm, damages, trimmed };
}

test("a start reports a damaged folder once, and removes nothing that it may need", async (t) => {
  const { host, paths, damages, trimmed } = await hostOfPaused(t);
  const builds = ["1", "2", "3"].map((digit) => join(paths.data, "images/other", digit.repeat(64)));
  for (const build of builds) {
    mkdirSync(build, { recursive: true });
    utimesSync(build, 1_000, 1_000);
  }
  writeFileSync(join(paths.capsule(id), "capsule.json"), "");
  await host.sweep();
  assert.deepEqual(damages.splice(0), [paths.capsule(id)]);
  assert.ok([paths.base("b"), ...builds].every(existsSync));
  assert.deepEqual(trimmed, []);

  rmSync(paths.capsule(id), { recursive: true });
  await host.sweep();
  assert.deepEqual(damages, []);
  assert.ok(!existsSync(paths.base("b")), "nothing stands on it");
  assert.equal(builds.filter(existsSync).length, 2, "the newest stay for a rollback");
  assert.deepEqual(trimmed, [0], "saved machines are left");
});

test("a capsule that is destroyed while it is resumed is removed on a full disk too", async (t) => {
  const kept = await hostOfPaused(t);
  const resumed = await kept.host.restore(id, { owner: "a team" });
  rmSync(kept.paths.work, { recursive: true }); // the new time of the disk layer cannot be recorded
  await assert.rejects(kept.host.end(resumed), { code: "ENOENT" }, "of a capsule that stays it has to be");

  const { host, paths, vm } = await hostOfPaused(t);
  await host.restore(id, { owner: "a team" });
  rmSync(paths.work, { recursive: true });
  await host.remove(id);
  assert.ok(!existsSync(paths.capsule(id)));
  assert.ok(vm.isDetached, "killed");
});

test("a VM is measured while its agent is waited for, as a guest, and no longer when it has ended", async (t) => {
  const waking = Promise.withResolvers<void>();
  const answer = Promise.withResolvers<Agent>();
  const { host } = await hostOfPaused(t, () => {
    waking.resolve();
    return answer.promise;
  });
  const measured = async () => [...(await host.memoryByCapsule()).keys()];
  const restoring = host.restore(id, { owner: "a team" });
  assert.deepEqual(await measured(), []);
  await waking.promise;
  assert.deepEqual(await measured(), [id]);
  answer.resolve(agent);
  const guest = await restoring;
  assert.deepEqual(await measured(), [id]);
  await host.end(guest);
  assert.deepEqual(await measured(), []);

  const silent = await hostOfPaused(t, () => Promise.reject(new Error("no answer")));
  await assert.rejects(silent.host.restore(id, { owner: "a team" }));
  assert.deepEqual([...(await silent.host.memoryByCapsule()).keys()], []);
});
