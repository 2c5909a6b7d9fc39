/** The template store: built-in images with their bases, and the files of templates, from which new capsules start. */
import { join } from "node:path";
import type { VmFiles, VmSpec } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { type CapsuleFile, diskName, type VmFile } from "../disk/capsule-folder.ts";
import { fileNames, openCheckpoint, parentHash, readManifest } from "../disk/checkpoint-folder.ts";
import { isSameMachine, requireSameMachine } from "../disk/machine-record.ts";
import { imageLayer, type Layer, type Manifest } from "../disk/manifest.ts";
import type { Paths } from "../disk/paths.ts";
import { type Origin, type Shape, serviceOwner, type Turn } from "../host.ts";
import type { Vmms } from "../qemu-builds/vmms.ts";
import type { Bases, Parent } from "./bases.ts";
import type { ImageStore } from "./image-store.ts";
import type { Image } from "./images.ts";

export class TemplateStore {
  readonly #paths: Paths;
  readonly #images: ImageStore;
  readonly #bases: Bases;
  readonly #vmms: Vmms;

  constructor(paths: Paths, images: ImageStore, bases: Bases, vmms: Vmms) {
    this.#paths = paths;
    this.#images = images;
    this.#bases = bases;
    this.#vmms = vmms;
  }

  /**
   * The parent of a new capsule, to be disposed of when the capsule's folder is made. A base that is missing is made when it is
   * the owner's turn. Throws CapsuleError: "not_found" for an unknown image, "conflict" for a template of another machine.
   */
  async find(origin: Origin, shape: Shape, turn: Turn): Promise<Parent & Disposable> {
    if (origin.kind === "base") {
      const image = this.#images.named(origin.name);
      if (image === undefined) throw new CapsuleError("not_found", `there is no image ${origin.name}`);
      await this.#vmms.refresh();
      // The bytes of its QEMU are read here, and not in a slot, which other teams wait for.
      await this.#vmms.closest(this.#vmms.machine(shape.vcpus, shape.memoryMb));
      return this.#bases.ensure(image, shape, turn);
    }
    const folder = this.#paths.template(origin.storage);
    const manifest = await openCheckpoint(folder);
    if (manifest === undefined) throw new CapsuleError("internal_error", "the template's files are missing");
    await this.requireMachine(manifest, "the template");
    return { folder, manifest, [Symbol.dispose]: () => {} };
  }

  /**
   * Whether the agent of a built-in image can make its root file system larger. While no base of the image was used, this waits for
   * that of the shape. Throws as `find`.
   */
  async canGrow(name: string, shape: Shape, turn: Turn): Promise<boolean> {
    const image = this.#images.named(name);
    const known = image === undefined ? undefined : this.#bases.canGrow(image);
    if (known !== undefined) return known;
    using parent = await this.find({ kind: "base", name }, shape, turn);
    return parent.manifest.agent.grows === true;
  }

  /** Makes the base that is missing for capsules of this origin and shape, if any. Throws as `find`. */
  async prepare(origin: Origin, shape: Shape): Promise<void> {
    using _parent = await this.find(origin, shape, { owner: serviceOwner });
  }

  /** Throws CapsuleError("conflict") when a checkpoint was made by a machine that this host cannot build. */
  async requireMachine({ machine }: Pick<Manifest, "machine">, what: string): Promise<void> {
    requireSameMachine(machine, await this.#vmms.closest(machine), what);
  }

  /** The image below a checkpoint, of the current build or an older one. Throws when it was removed. */
  image(image: Manifest["image"]): Image {
    return this.#images.build(image);
  }

  /** The image as the layer below a checkpoint. */
  layer({ name, hash }: Manifest["image"]): Layer {
    const { manifest } = this.image({ name, hash });
    return imageLayer(name, hash, manifest.files["root.ext4"].sha256);
  }

  /** Throws CapsuleError("conflict") unless the capsule's parent is still there and the same. */
  async requireParent({ parent, parentSha256 }: CapsuleFile, what: string): Promise<void> {
    const manifest = await readManifest(join(this.#paths.data, parent));
    if (manifest !== undefined && parentHash(manifest) === parentSha256) return;
    throw new CapsuleError("conflict", `${what} cannot be resumed: the files it was started from are gone (${parent})`);
  }

  /** The VM of a capsule, as its folder describes it. */
  spec(id: string, capsule: CapsuleFile, { nonce }: Pick<VmFile, "nonce">): VmSpec {
    const dir = this.#paths.capsule(id);
    const own = { dir, disk: join(dir, diskName), diskBytes: capsule.diskBytes };
    return { name: id, nonce, machine: capsule.machine, files: { ...this.sharedFiles(capsule), ...own } };
  }

  /** A VM of it that boots: with the kernel, and the agent, of its image's current build. */
  bootSpec(id: string, capsule: CapsuleFile, journal: Pick<VmFile, "nonce">): VmSpec {
    const spec = this.spec(id, capsule, journal);
    const { kernel, initrd } = this.#images.named(capsule.image.name) ?? this.image(capsule.image);
    return { ...spec, files: { ...spec.files, kernel, initrd } };
  }

  /** A capsule that is about to boot: on the machine that this release makes, whatever it was started on. */
  async renewed(capsule: CapsuleFile): Promise<CapsuleFile> {
    await this.#vmms.refresh();
    const { vcpus, memoryMb } = capsule.machine;
    const machine = this.#vmms.machine(vcpus, memoryMb);
    return isSameMachine(capsule.machine, machine) ? capsule : { ...capsule, machine, hasOwnMachine: true };
  }

  /** The files that all VMs with the same parent share. */
  sharedFiles(capsule: Pick<CapsuleFile, "parent" | "image">): Omit<VmFiles, "dir" | "disk" | "diskBytes"> {
    const parent = join(this.#paths.data, capsule.parent);
    const { kernel, initrd, root } = this.image(capsule.image);
    return { memory: join(parent, fileNames.memory), backing: [join(parent, fileNames.disk), root], kernel, initrd };
  }
}
