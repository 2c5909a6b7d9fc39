/** A host with a paused capsule whose VM is no process, for tests of the order and the number of its steps. */
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import type { Agent } from "../../src/agent/agent.ts";
import { HostMemory } from "../../src/host/capacity/host-memory.ts";
import { writeCapsule } from "../../src/host/disk/capsule-folder.ts";
import { diskLayerOf, parentHash, writeManifest } from "../../src/host/disk/checkpoint-folder.ts";
import { imageLayer } from "../../src/host/disk/manifest.ts";
import { Paths } from "../../src/host/disk/paths.ts";
import type { Connect } from "../../src/host/guest.ts";
import { ImageStore } from "../../src/host/images/image-store.ts";
import type { Image } from "../../src/host/images/images.ts";
import { LocalHost } from "../../src/host/local-host.ts";
import type { Vmms } from "../../src/host/qemu-builds/vmms.ts";
import { FakeVm } from "./fake-vm.ts";

/** The capsule of the host. */
export const id = "cl-1";
const image = { name: "minimal", hash: "ab" };
/** An agent that answers WAKE. */
export const agent = {
  awake: true,
  closed: new Promise(() => {}),
  wake: async () => {},
  close() {},
} as unknown as Agent;

export interface PausedHost {
  host: LocalHost;
  paths: Paths;
  vm: FakeVm;
  /** Folders that were reported. */
  damages: string[];
  /** How many saved machines each trim of QEMU's builds was told. */
  trimmed: number[];
}

/** A host with one paused capsule, whose guest's kernel writes to the disk layer when it is resumed. */
export async function hostOfPaused(t: TestContext, connect: Connect = async () => agent): Promise<PausedHost> {
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
    requireKept: async () => {},
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
  const manifest = { files: { "root.ext4": { sha256: null } } } as unknown as Image["manifest"];
  const built = { ...image, kernel: files, initrd: files, root: files, manifest } as Image;
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
