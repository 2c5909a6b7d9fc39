/** The folder of a paused capsule in a data folder of its own, as a pause leaves it. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { writeCapsule } from "../../src/host/disk/capsule-folder.ts";
import { diskLayerOf, writeManifest } from "../../src/host/disk/checkpoint-folder.ts";
import { imageLayer, type Saved } from "../../src/host/disk/manifest.ts";
import { Paths } from "../../src/host/disk/paths.ts";
import type { Machine } from "../../src/vmm/vmm.ts";

/** The machine of the paused capsule. */
const machine: Machine = {
  ...{ qemu: "10", accelerator: "tcg", cpu: "max", devices: ["ports:1"], vcpus: 1, memoryMb: 128 },
};

export interface PausedFolder {
  paths: Paths;
  folder: string;
  checkpoint: string;
  /** Path of the disk layer. */
  layer: string;
}

/** `about`: what the manifest says instead. Removed after the test. */
export async function pausedFolder(
  t: TestContext,
  { id, content, revision }: { id: string; content: string; revision: number },
  about: Partial<Saved> = {},
): Promise<PausedFolder> {
  const data = mkdtempSync(join(tmpdir(), "paused-"));
  t.after(() => rmSync(data, { recursive: true }));
  const paths = new Paths(data);
  const folder = paths.capsule(id);
  const checkpoint = join(folder, "checkpoint");
  for (const path of [checkpoint, paths.work]) mkdirSync(path, { recursive: true });
  const layer = join(folder, "disk.qcow2");
  writeFileSync(layer, content);
  writeFileSync(join(checkpoint, "state"), "devices");
  const image = { name: "minimal", hash: "ab" };
  await writeCapsule(folder, { parent: "bases/b", parentSha256: null, image, machine });
  const layers = [imageLayer(image.name, image.hash, null)];
  const saved = { kind: "pause", revision, machine, agent: { protocol: 1 }, layers, frozen: true } as const;
  await writeManifest(checkpoint, { ...saved, diskLayer: diskLayerOf(layer), ...about }, ["state"], { hashAll: false });
  return { paths, folder, checkpoint, layer };
}
