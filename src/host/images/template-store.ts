/** What capsules start from: the built-in images, their bases, and the files of templates. */
import { statSync } from "node:fs";
import { join } from "node:path";
import type { VmFiles, Vmm, VmSpec } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { type CapsuleFile, diskName, type VmFile } from "../disk/capsule-folder.ts";
import { fileNames, type Manifest, openCheckpoint, requireSameMachine } from "../disk/checkpoint-folder.ts";
import { readJson } from "../disk/files.ts";
import type { Paths } from "../disk/paths.ts";
import type { Origin, Shape } from "../host.ts";
import type { Bases } from "./bases.ts";
import { type Image, loadImage } from "./images.ts";

/** A checkpoint that capsules start from, with its folder. */
export interface Source {
  folder: string;
  manifest: Manifest;
}

/** What tells a base or template from any other that might come to stand in its place. */
export function hashOfSource(manifest: Manifest): string | null {
  return manifest.files[fileNames.memory]?.sha256 ?? null;
}

export class TemplateStore {
  readonly #paths: Paths;
  readonly #images: Image[];
  readonly #bases: Bases;
  readonly #vmm: Vmm;

  constructor(paths: Paths, images: Image[], bases: Bases, vmm: Vmm) {
    this.#paths = paths;
    this.#images = images;
    this.#bases = bases;
    this.#vmm = vmm;
  }

  /** Throws CapsuleError: "not_found" for an unknown image, "conflict" for a template of another machine. */
  async find(origin: Origin, shape: Shape): Promise<Source> {
    if (origin.kind === "base") {
      const image = this.#images.find((candidate) => candidate.name === origin.name);
      if (image === undefined) throw new CapsuleError("not_found", `there is no image ${origin.name}`);
      return this.#bases.ensure(image, shape);
    }
    const folder = this.#paths.template(origin.storage);
    const manifest = await openCheckpoint(folder);
    if (manifest === undefined) throw new CapsuleError("internal_error", "the template's files are missing");
    this.requireMachine(manifest, "the template");
    return { folder, manifest };
  }

  /** Throws CapsuleError("conflict") when a checkpoint was made by another machine than this host would build now. */
  requireMachine(manifest: Manifest, what: string): void {
    const { vcpus, memoryMb } = manifest.machine;
    requireSameMachine(manifest.machine, this.#vmm.machine(vcpus, memoryMb), what);
  }

  /** The image that a checkpoint stands on, of this build or an older one. Throws when it was removed. */
  image({ name, hash }: Manifest["image"]): Image {
    return this.#images.find((image) => image.hash === hash) ?? loadImage(this.#paths.data, name, hash);
  }

  /** The built-in images as templates; sizes are bytes on disk. */
  builtIn(): { name: string; sizeBytes: number; createdAt: number }[] {
    return this.#images.map((image) => {
      const files = [image.kernel, image.initrd, image.root].map((path) => statSync(path));
      const sizeBytes = files.reduce((sum, file) => sum + file.blocks * 512, 0);
      return { name: image.name, sizeBytes, createdAt: Math.round(Math.max(...files.map((file) => file.mtimeMs))) };
    });
  }

  /** Throws CapsuleError("conflict") unless what the capsule started from is still there, the very same. */
  async requireParent({ origin, originSha256 }: CapsuleFile, what: string): Promise<void> {
    const manifest = await readJson<Manifest>(join(this.#paths.data, origin, fileNames.manifest));
    if (manifest !== undefined && hashOfSource(manifest) === originSha256) return;
    throw new CapsuleError("conflict", `${what} cannot be resumed: the files it was started from are gone (${origin})`);
  }

  /** The VM of a capsule, as its folder describes it. */
  spec(id: string, capsule: CapsuleFile, { nonce }: Pick<VmFile, "nonce">): VmSpec {
    const dir = this.#paths.capsule(id);
    const own = { dir, disk: join(dir, diskName) };
    return { name: id, nonce, machine: capsule.machine, files: { ...this.sharedFiles(capsule), ...own } };
  }

  /** The files that all VMs have in common which start from the same. */
  sharedFiles(capsule: Pick<CapsuleFile, "origin" | "image">): Omit<VmFiles, "dir" | "disk"> {
    const origin = join(this.#paths.data, capsule.origin);
    const { kernel, initrd, root } = this.image(capsule.image);
    return { memory: join(origin, fileNames.memory), backing: [join(origin, fileNames.disk), root], kernel, initrd };
  }
}
