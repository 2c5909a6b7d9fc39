/**
 * A data folder with an image, a base and a paused capsule on it, as a host leaves them: real qcow2 files of 4 MiB, and memory that
 * is larger than a piece of its hashes.
 */
import { execFileSync } from "node:child_process";
import { hash, randomBytes } from "node:crypto";
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Verifier } from "../../src/host/checkpoint/verifier.ts";
import { checkpointName, diskName } from "../../src/host/disk/capsule-folder.ts";
import { diffName, diskLayerOf, fileNames, writeManifest } from "../../src/host/disk/checkpoint-folder.ts";
import { imageLayer } from "../../src/host/disk/manifest.ts";
import { Paths } from "../../src/host/disk/paths.ts";
import { overlayOn } from "../../src/host/images/boot.ts";
import { ImageStore } from "../../src/host/images/image-store.ts";
import { imageFiles } from "../../src/host/images/images.ts";
import { TemplateStore } from "../../src/host/images/template-store.ts";
import { createCapsuleFolder } from "../../src/host/launch/new-capsule.ts";
import { LocalMoves } from "../../src/host/moves/local-moves.ts";
import { emptyOverlay } from "../../src/vmm/qcow2.ts";
import type { Machine } from "../../src/vmm/vmm.ts";

export const movedMachine: Machine = {
  ...{ qemu: "10.0.2", qemuBuild: "b".repeat(64), accelerator: "tcg", cpu: "max", devices: ["ports:1"] },
  ...{ vcpus: 1, memoryMb: 128 },
};
export const movedId = "cl-1";
/** Revision of the row with the intent of the pause. */
export const movedRevision = 7;
const diskBytes = 4 << 20;
const image = { name: "minimal", hash: "a".repeat(64) };

/** The context of a test, or `after` itself. */
export interface Cleanup {
  after(work: () => void): void;
}

/** A host's data folder, and its moves. */
export interface MovingHost {
  paths: Paths;
  verifier: Verifier;
  templates: TemplateStore;
  moves: LocalMoves;
  /** Capsules whose part of the disk's reserve was given back. */
  forgotten: string[];
}

/** With the image and the base, and no capsule. Removed after the test. */
export async function movingHost(t: Cleanup, of?: MovingHost): Promise<MovingHost> {
  const paths = new Paths(mkdtempSync(join(tmpdir(), "moves-")));
  t.after(() => rmSync(paths.data, { recursive: true }));
  paths.create();
  if (of === undefined) {
    layImage(paths);
    await layBase(paths);
  } else
    for (const name of ["images", "bases"])
      cpSync(join(of.paths.data, name), join(paths.data, name), { recursive: true, verbatimSymlinks: true });
  const images = ImageStore.open(paths.data, () => {});
  const verifier = new Verifier(
    () => {},
    paths.scratch("hashing"),
    async () => {},
  );
  const bases = { hold: async () => new DisposableStack() };
  const templates = new TemplateStore(paths, images, bases as never, {} as never);
  const forgotten: string[] = [];
  const space = { forgetPause: (id: string) => void forgotten.push(id) };
  return { paths, verifier, templates, forgotten, moves: new LocalMoves({ paths, verifier, templates, bases, space }) };
}

/** The folder of a paused capsule, with its hashes, as a pause leaves it some seconds later. */
export async function pauseOn(
  host: MovingHost,
  { id = movedId, memoryBytes = 5 << 20, isHashed = true } = {},
): Promise<void> {
  const { paths, templates, verifier } = host;
  const manifest = { machine: movedMachine, image, files: parentFiles };
  const parent = { folder: paths.base("minimal-b"), manifest } as never;
  await createCapsuleFolder(paths, templates, id, parent);
  const [layer, checkpoint] = [join(paths.capsule(id), diskName), join(paths.capsule(id), checkpointName)];
  execFileSync("qemu-io", ["-f", "qcow2", "-c", "write -P 9 65536 131072", layer]);
  mkdirSync(checkpoint);
  writeFileSync(join(checkpoint, fileNames.state), "devices");
  writeFileSync(join(checkpoint, diffName), randomBytes(memoryBytes));
  const about = { kind: "pause", machine: movedMachine, agent: { protocol: 3 }, frozen: true } as const;
  const saved = { ...about, revision: movedRevision, layers: [rootLayer], diskLayer: diskLayerOf(layer) };
  await writeManifest(checkpoint, saved, [fileNames.state, diffName], { hashAll: false });
  if (isHashed) verifier.hashMissing([checkpoint]);
  await verifier.settled();
}

const rootSha256 = hash("sha256", Buffer.alloc(diskBytes));
const rootLayer = imageLayer(image.name, image.hash, rootSha256);
const memory = Buffer.from("memory");
const parentFiles = { [fileNames.memory]: { bytes: memory.length, sha256: hash("sha256", memory) } };

function layImage(paths: Paths): void {
  const folder = join(paths.data, "images", image.name, image.hash);
  mkdirSync(folder, { recursive: true });
  const content = Buffer.alloc(diskBytes);
  for (const file of imageFiles) writeFileSync(join(folder, file), content);
  const file = { sha256: rootSha256, bytes: diskBytes };
  const manifest = {
    ...{ format: 1, ...image, built_at: "2026-01-01T00:00:00.000Z", kernel_release: "6.1.0", disk_bytes: diskBytes },
    files: Object.fromEntries(imageFiles.map((name) => [name, file])),
    inputs: Object.fromEntries(["agent", "initrd", "kernel", "root"].map((name) => [name, rootSha256])),
    packages: {},
  };
  writeFileSync(join(folder, "manifest.json"), JSON.stringify(manifest));
  symlinkSync(image.hash, join(paths.data, "images", image.name, "current"));
}

async function layBase(paths: Paths): Promise<void> {
  const folder = paths.base("minimal-b");
  mkdirSync(folder);
  const root = join(paths.data, "images", image.name, image.hash, "root.ext4");
  writeFileSync(join(folder, fileNames.disk), emptyOverlay(overlayOn(folder, root, "raw", diskBytes)));
  writeFileSync(join(folder, fileNames.memory), memory);
  writeFileSync(join(folder, fileNames.state), "devices");
  const about = { kind: "base", machine: movedMachine, agent: { protocol: 3, grows: true }, frozen: true } as const;
  const saved = { ...about, revision: null, layers: [rootLayer], diskLayer: null };
  const names = [fileNames.state, fileNames.memory, fileNames.disk];
  await writeManifest(folder, saved, names, { hashAll: true });
}

/** The files of it that are moved, by their names. */
export const movableFiles = [
  "capsule.json",
  ...["hashes", "manifest.json", "memory.diff", "state"].map((name) => `checkpoint/${name}`),
  "disk.qcow2",
];
