/**
 * The folders of this host that others than their own capsules need: images, QEMU builds, bases and templates. Another host of a cluster
 * takes one file by file; one that comes from there is checked, and published as if it were made here. Nothing in it is believed before.
 */
import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { CapsuleError, messageOf } from "../../wire/errors.ts";
import type { Verifier } from "../checkpoint/verifier.ts";
import { readManifest } from "../disk/checkpoint-folder.ts";
import { type DiskSpace, writtenIn } from "../disk/disk-space.ts";
import type { Paths } from "../disk/paths.ts";
import type { Bases } from "../images/bases.ts";
import type { ImageStore } from "../images/image-store.ts";
import type { TemplateStore } from "../images/template-store.ts";
import type { Vmms } from "../qemu-builds/vmms.ts";
import { buildIn, requireBuild } from "./shared-build.ts";
import { checkpointIn, requireCheckpoint } from "./shared-checkpoint.ts";
import type { SharedFolder, SharedKind, SharedLayer } from "./shared-folder.ts";
import { imageIn, requireImage } from "./shared-image.ts";

/** Room on disk that is set aside until it is disposed of. */
export interface FetchPlace extends Disposable {
  /** The folder to make, which is removed at a start where it is left. */
  work: string;
  /** Where it belongs; nothing is there. */
  target: string;
}

export interface SharedFoldersOptions {
  paths: Paths;
  images: Pick<ImageStore, "build">;
  bases: Pick<Bases, "hold">;
  templates: Pick<TemplateStore, "requireMachine">;
  space: Pick<DiskSpace, "reserve" | "orReclaim">;
  verifier: Pick<Verifier, "isSound">;
  vmm: Pick<Vmms, "take">;
}

const keys: Readonly<Record<SharedKind, RegExp>> = {
  image: /^[a-zA-Z0-9][a-zA-Z0-9._-]{0,31}\/[0-9a-f]{64}$/,
  qemu: /^[0-9a-f]{64}$/,
  base: /^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$/,
  template: /^t[0-9a-f]{1,127}$/,
};

export class SharedFolders {
  readonly #options: SharedFoldersOptions;

  constructor(options: SharedFoldersOptions) {
    this.#options = options;
  }

  /** The folder stays until the result is disposed of, also one that comes meanwhile. Templates are held by who has their rows. */
  async hold(kind: SharedKind, key: string): Promise<Disposable> {
    if (kind === "base") return await this.#options.bases.hold(key);
    return { [Symbol.dispose]() {} }; // images and QEMU builds are removed at a start alone
  }

  /** Undefined: there is none. Throws CapsuleError("agent_error") for one that is damaged, as far as sizes say. */
  async find(kind: SharedKind, key: string): Promise<SharedFolder | undefined> {
    const folder = this.#folder(kind, key);
    if (!existsSync(folder)) return undefined;
    try {
      if (kind === "image") return imageIn(folder, this.#image(key));
      if (kind === "qemu") return await buildIn(this.#options.paths.qemuBuilds, key);
      if (!this.#options.verifier.isSound(folder)) throw new Error("it was found damaged");
      return await checkpointIn(folder, this.#below);
    } catch (error) {
      throw unusable(`${kind} ${key} of this host`, error);
    }
  }

  /** Throws CapsuleError("no_space") where there is no room for so many bytes. */
  async place(kind: SharedKind, key: string, bytes: number): Promise<FetchPlace> {
    const { paths, space } = this.#options;
    const [target, work] = [this.#folder(kind, key), paths.scratch(`fetch-${randomUUID()}`)];
    const room = await space.orReclaim(() => space.reserve(bytes, `fetching ${kind} ${key}`, () => writtenIn(work)));
    try {
      await mkdir(dirname(target), { recursive: true, mode: 0o755 });
      return { work, target, [Symbol.dispose]: () => room[Symbol.dispose]() };
    } catch (error) {
      room[Symbol.dispose]();
      throw error;
    }
  }

  /** Reads all of a folder that was fetched, and gives its files the modes that they have here. Throws CapsuleError("agent_error"). */
  async check(kind: SharedKind, key: string, folder: string): Promise<void> {
    try {
      if (kind === "image") await requireImage(folder, imageOf(key));
      else if (kind === "qemu") await requireBuild(folder, key);
      else await requireCheckpoint(folder, { kind, key, image: (of) => this.#options.images.build(of) });
    } catch (error) {
      throw unusable(`${kind} ${key} of the bucket`, error);
    }
  }

  /** The folder is in its place now. */
  async published(kind: SharedKind, key: string): Promise<void> {
    if (kind === "qemu") await this.#options.vmm.take(key);
  }

  /** Throws CapsuleError("conflict") for a template of a machine that this host cannot build. */
  async requireUsable(storage: string): Promise<void> {
    const manifest = await readManifest(this.#folder("template", storage));
    if (manifest !== undefined) await this.#options.templates.requireMachine(manifest, "the template");
  }

  readonly #below = async (kind: "image" | "qemu", key: string): Promise<SharedLayer | undefined> => {
    const found = await this.find(kind, key);
    return found && { kind, key, sha256: found.sha256 };
  };

  #image(key: string) {
    return this.#options.images.build(imageOf(key));
  }

  #folder(kind: SharedKind, key: string): string {
    const { paths } = this.#options;
    if (!keys[kind].test(key)) throw new CapsuleError("agent_error", `${JSON.stringify(key)} is no ${kind}`);
    if (kind === "image") return join(paths.data, "images", key);
    if (kind === "qemu") return join(paths.qemuBuilds, key);
    return kind === "base" ? paths.base(key) : paths.template(key);
  }
}

function imageOf(key: string): { name: string; hash: string } {
  const [name = "", hash = ""] = key.split("/");
  return { name, hash };
}

function unusable(what: string, error: unknown): unknown {
  if (error instanceof CapsuleError && error.code === "no_space") return error;
  return new CapsuleError("agent_error", `${what} cannot be used: ${messageOf(error)}`, { cause: error });
}
