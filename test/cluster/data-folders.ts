/** Data folders without VMs: an image, a QEMU build, a base and a template as a host makes them, of some megabytes together. */
import { createHash } from "node:crypto";
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { writeManifest } from "../../src/host/disk/checkpoint-folder.ts";
import { DiskSpace } from "../../src/host/disk/disk-space.ts";
import { imageLayer } from "../../src/host/disk/manifest.ts";
import { Paths } from "../../src/host/disk/paths.ts";
import { overlayOn } from "../../src/host/images/boot.ts";
import { type Image, imageFiles, loadImage } from "../../src/host/images/images.ts";
import { keepBuild } from "../../src/host/qemu-builds/build-folder.ts";
import { buildNames } from "../../src/host/qemu-builds/build-sources.ts";
import type { SharedKind } from "../../src/host/shared-folders/shared-folder.ts";
import { SharedFolders } from "../../src/host/shared-folders/shared-folders.ts";
import { emptyOverlay } from "../../src/vmm/qcow2.ts";
import { FakeVm } from "../fakes/fake-vm.ts";

const mib = 1 << 20;
const zeros = "0".repeat(64);
export const imageName = "minimal";
export const imageHash = "a".repeat(64);
export const imageKey = `${imageName}/${imageHash}`;

export class DataFolder implements Disposable {
  readonly paths: Paths;
  readonly folders: SharedFolders;
  /** QEMU builds that were put here. */
  readonly taken: string[] = [];

  constructor(parent: string = tmpdir()) {
    this.paths = new Paths(mkdtempSync(join(parent, "capsule-data-")));
    this.paths.create();
    this.folders = new SharedFolders({
      paths: this.paths,
      images: { build: ({ name, hash }) => this.image(name, hash) },
      bases: { hold: async () => ({ [Symbol.dispose]() {} }) },
      templates: { requireMachine: async () => {} },
      space: new DiskSpace({ folder: this.paths.data, reserveBytes: 0 }),
      verifier: { isSound: () => true },
      vmm: {
        take: async (build) => {
          this.taken.push(build);
        },
      },
    });
  }

  image(name: string = imageName, hash: string = imageHash): Image {
    return loadImage(this.paths.data, name, hash);
  }

  /** Where it is, or would be. */
  folder(kind: SharedKind, key: string): string {
    const names = { image: "images", qemu: "qemu", base: "bases", template: "templates" };
    return join(this.paths.data, names[kind], key);
  }

  /** An image whose root disk is mostly a hole. */
  addImage(root: string = "the root disk"): void {
    const folder = this.folder("image", imageKey);
    mkdirSync(folder, { recursive: true });
    const contents = { kernel: "a kernel", initrd: "an initrd", "root.ext4": root };
    for (const file of imageFiles) writeFileSync(join(folder, file), contents[file]);
    truncateSync(join(folder, "root.ext4"), 64 * mib);
    const files = Object.fromEntries(
      imageFiles.map((file) => {
        const bytes = readFileSync(join(folder, file));
        return [file, { sha256: createHash("sha256").update(bytes).digest("hex"), bytes: bytes.length }];
      }),
    );
    const inputs = { agent: zeros, initrd: zeros, kernel: zeros, root: zeros };
    const about = { format: 1, name: imageName, hash: imageHash, built_at: "2026-01-01T00:00:00.000Z" };
    const manifest = { ...about, kernel_release: "6.1.0", disk_bytes: 64 * mib, files, inputs, packages: {} };
    writeFileSync(join(folder, "manifest.json"), JSON.stringify(manifest));
  }

  /** A script in place of QEMU; returns the build's hash. */
  async addBuild(firmware = "firmware"): Promise<string> {
    const source = this.paths.scratch("source");
    mkdirSync(source);
    writeFileSync(join(source, "qemu"), "#!/bin/sh\necho QEMU emulator version 10.0.2\n");
    chmodSync(join(source, "qemu"), 0o755);
    writeFileSync(join(source, "bios.bin"), firmware);
    const sources = [
      { path: join(source, "qemu"), name: buildNames.program },
      { path: join(source, "bios.bin"), name: "share/qemu/QEMU,VGA.bin" },
    ];
    const { build } = await keepBuild(this.paths.qemuBuilds, sources);
    rmSync(source, { recursive: true });
    return build;
  }

  /** A template or base, whose memory has a hole; returns its key. */
  async addCheckpoint(
    kind: "base" | "template",
    { key, build, contents = "memory" }: { key?: string; build?: string; contents?: string } = {},
  ): Promise<string> {
    const folder = this.paths.scratch(`made-${kind}`);
    mkdirSync(folder);
    const { root, diskBytes, manifest } = this.image();
    writeFileSync(join(folder, "state"), "device state");
    writeFileSync(join(folder, "memory"), Buffer.alloc(2 * mib, contents));
    truncateSync(join(folder, "memory"), 16 * mib);
    writeFileSync(join(folder, "disk.qcow2"), emptyOverlay(overlayOn(folder, root, "raw", diskBytes)));
    const { qemuBuild: _, ...plain } = new FakeVm("").spec.machine;
    const machine = { ...plain, ...(build === undefined ? {} : { qemuBuild: build }) };
    const layers = [imageLayer(imageName, imageHash, manifest.files["root.ext4"].sha256)];
    const about = {
      machine,
      agent: { protocol: 1, grows: true },
      layers,
      frozen: true,
      revision: null,
      diskLayer: null,
    };
    await writeManifest(folder, { ...about, kind }, ["state", "memory", "disk.qcow2"], { hashAll: true });
    const content = createHash("sha256")
      .update(readFileSync(join(folder, "manifest.json")))
      .digest("hex");
    const name = key ?? (kind === "template" ? `t${content.slice(0, 16)}` : `minimal-1x512-${content.slice(0, 8)}`);
    renameSync(folder, this.folder(kind, name));
    return name;
  }

  /** Names, modes and contents of everything in a folder. */
  tree(kind: SharedKind, key: string): Record<string, string> {
    const folder = this.folder(kind, key);
    const entries = readdirSync(folder, { withFileTypes: true, recursive: true }).filter((entry) => entry.isFile());
    return Object.fromEntries(
      entries.map(({ parentPath, name }) => {
        const path = join(parentPath, name);
        return [relative(folder, path), createHash("sha256").update(readFileSync(path)).digest("hex")];
      }),
    );
  }

  /** Nothing is being made. */
  get isTidy(): boolean {
    return readdirSync(this.paths.work).length === 0;
  }

  [Symbol.dispose](): void {
    rmSync(this.paths.data, { recursive: true });
  }
}
