/** Assembles an image from its parts and publishes it. src/host/images/images.ts reads it. */
import { createHash } from "node:crypto";
import { copyFile, link, rename, rm, stat, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type ImageManifest, manifestFormat } from "../../src/host/images/images.ts";
import type { Kernel } from "./kernel.ts";
import { type PartFile, publish, sync } from "./parts.ts";
import type { Root } from "./root.ts";

export interface Contents {
  name: string;
  kernel: Kernel;
  root: Root;
  initrd: Buffer;
  inputs: ImageManifest["inputs"];
}

type FileFacts = ImageManifest["files"]["kernel"];

/** Hash of everything that determines the image: the keys of its parts and the versions of their packages. */
export function imageHash({ name, kernel, root, inputs }: Omit<Contents, "initrd">): string {
  const versions = Object.entries(packagesOf(kernel, root)).sort(([a], [b]) => (a < b ? -1 : 1));
  const keys = [inputs.agent, inputs.initrd, inputs.kernel, inputs.root];
  return createHash("sha256")
    .update(JSON.stringify([manifestFormat, name, keys, versions]))
    .digest("hex");
}

/** Resolves with the image's folder. */
export async function publishImage(images: string, contents: Contents): Promise<string> {
  const { name, kernel, root, initrd, inputs } = contents;
  const hash = imageHash(contents);
  const folder = join(images, name, hash);
  await publish(folder, async (scratch) => {
    const files = {
      kernel: await share(kernel.image, join(scratch, "kernel")),
      initrd: { sha256: createHash("sha256").update(initrd).digest("hex"), bytes: initrd.length },
      "root.ext4": await share(root.image, join(scratch, "root.ext4")),
    };
    await writeFile(join(scratch, "initrd"), initrd, { mode: 0o444 });
    const manifest: ImageManifest = {
      format: manifestFormat,
      name,
      hash,
      built_at: new Date().toISOString(),
      kernel_release: kernel.release,
      disk_bytes: root.diskBytes,
      files,
      inputs,
      packages: packagesOf(kernel, root),
    };
    await writeFile(join(scratch, "manifest.json"), `${JSON.stringify(manifest, null, 2)}\n`);
  });
  await pointTo(join(images, name), hash);
  return folder;
}

function packagesOf(kernel: Kernel, root: Root): Record<string, string> {
  return { [kernel.package]: kernel.packageVersion, ...root.packages };
}

/** Images share files with their parts by hard links; both are read-only. */
async function share({ path, sha256 }: PartFile, to: string): Promise<FileFacts> {
  await link(path, to).catch(() => copyFile(path, to));
  return { sha256, bytes: (await stat(to)).size };
}

async function pointTo(folder: string, hash: string): Promise<void> {
  const fresh = join(folder, `.current-${process.pid}`);
  await rm(fresh, { force: true });
  await symlink(hash, fresh);
  await rename(fresh, join(folder, "current"));
  await sync(folder);
}
