/**
 * One build of an image, as guest/image publishes it: a folder named by the hash of its inputs. Its manifest and the sizes of its
 * files are checked when it is read.
 */
import { readFileSync, readlinkSync, statSync } from "node:fs";
import { join, resolve } from "node:path";
import { CapsuleError } from "../../wire/errors.ts";
import { isCount, isObject, isSha256 } from "../disk/fields.ts";

export const manifestFormat = 1;
export const imageFiles = ["kernel", "initrd", "root.ext4"] as const;
export type ImageFile = (typeof imageFiles)[number];

/** manifest.json. Everything but `built_at` follows from the image's inputs. */
export interface ImageManifest {
  format: typeof manifestFormat;
  name: string;
  /** 64 hex digits, also the folder's name. */
  hash: string;
  /** ISO 8601. */
  built_at: string;
  /** As `uname -r` says it. */
  kernel_release: string;
  disk_bytes: number;
  files: Record<ImageFile, { sha256: string; bytes: number }>;
  /** Keys of the inputs of each part; a part with another key is out of date. */
  inputs: Record<"agent" | "initrd" | "kernel" | "root", string>;
  /** Version by package name, the kernel's own package among them. */
  packages: Record<string, string>;
}

export interface Image {
  name: string;
  hash: string;
  /** Absolute paths. */
  kernel: string;
  initrd: string;
  root: string;
  diskBytes: number;
  manifest: ImageManifest;
}

const remedy = "run ./dev image";

/** The image of this name, or an older build of it by its hash. Throws CapsuleError when it is missing or damaged. */
export function loadImage(dataDir: string, name: string, hash?: string): Image {
  const images = resolve(dataDir, "images", name);
  const folder = join(images, hash ?? currentHash(images, name));
  const manifest = readManifest(folder, name);
  for (const file of imageFiles) {
    const { bytes } = manifest.files[file];
    const found = statSync(join(folder, file), { throwIfNoEntry: false })?.size;
    if (found !== bytes) throw damaged(name, `${file} has ${found ?? "no"} bytes instead of ${bytes}`);
  }
  return {
    name,
    hash: manifest.hash,
    kernel: join(folder, "kernel"),
    initrd: join(folder, "initrd"),
    root: join(folder, "root.ext4"),
    diskBytes: manifest.disk_bytes,
    manifest,
  };
}

function currentHash(images: string, name: string): string {
  try {
    return readlinkSync(join(images, "current"));
  } catch (cause) {
    throw new CapsuleError("internal_error", `image ${name} is not built in ${images}; ${remedy}`, { cause });
  }
}

function readManifest(folder: string, name: string): ImageManifest {
  let manifest: unknown;
  try {
    manifest = JSON.parse(readFileSync(join(folder, "manifest.json"), "utf8"));
  } catch (cause) {
    throw damaged(name, `${folder} has no readable manifest`, cause);
  }
  const problem = manifestProblem(manifest);
  if (problem !== undefined) throw damaged(name, `the manifest in ${folder} ${problem}`);
  const { name: said, hash } = manifest as ImageManifest;
  if (said !== name || !folder.endsWith(`/${hash}`)) throw damaged(name, `${folder} holds image ${said} ${hash}`);
  return manifest as ImageManifest;
}

/** The first fault of a parsed manifest; undefined when there is none. */
export function manifestProblem(value: unknown): string | undefined {
  if (!isObject(value)) return "is no object";
  if (value.format !== manifestFormat) return `has format ${value.format}, this version reads ${manifestFormat}`;
  if (typeof value.name !== "string") return "has no name";
  if (!isSha256(value.hash)) return "has no hash";
  if (typeof value.built_at !== "string") return "has no built_at";
  if (typeof value.kernel_release !== "string") return "has no kernel_release";
  if (!isCount(value.disk_bytes)) return "has no disk_bytes";
  const { files, inputs, packages } = value;
  if (!isObject(files)) return "has no files";
  for (const name of imageFiles) {
    const file = files[name];
    if (!isObject(file) || !isCount(file.bytes) || !isSha256(file.sha256)) return `does not describe ${name}`;
  }
  if (!isObject(inputs)) return "has no inputs";
  for (const input of ["agent", "initrd", "kernel", "root"]) {
    if (!isSha256(inputs[input])) return `has no key of the ${input}`;
  }
  const versions = isObject(packages) ? Object.values(packages) : [undefined];
  return versions.every((version) => typeof version === "string") ? undefined : "has no packages";
}

function damaged(name: string, reason: string, cause?: unknown): CapsuleError {
  return new CapsuleError("internal_error", `image ${name} is damaged: ${reason}; ${remedy}`, { cause });
}
