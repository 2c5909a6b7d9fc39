/**
 * Debian's cloud kernel and the drivers that a capsule boots with. Taken from the package without installing it.
 * The compressed image is booted as it is: unpacking LZ4 costs 0.1 s under emulation, and QEMU's way of starting an
 * uncompressed kernel may lay the initrd over the ACPI tables.
 */
import { chmod, copyFile, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { architecture, downloadPackage, kernelCandidate, refreshIndexes } from "./apt.ts";
import { keyOf, sha256OfFile } from "./inputs.ts";
import { type PartFile, type Parts, part } from "./parts.ts";
import { runProgram } from "./program.ts";

const metapackage = "linux-image-cloud-amd64";

/** In loading order. A driver that is built into the kernel is left out. */
const drivers = ["virtio_ring", "virtio", "virtio_mmio", "virtio_blk", "virtio_console", "tun"];

export interface Kernel {
  /** Inputs' key. */
  key: string;
  /** As `uname -r` says it. */
  release: string;
  package: string;
  packageVersion: string;
  /** The bootable image. */
  image: PartFile;
  /** Files in loading order. */
  modules: { name: string; path: string }[];
}

type Facts = Pick<Kernel, "release" | "package" | "packageVersion"> & { sha256: string; modules: string[] };

export async function kernelKey(): Promise<string> {
  return keyOf({ metapackage, drivers }, ["kernel.ts"]);
}

export async function kernel(parts: Parts): Promise<Kernel> {
  const key = await kernelKey();
  const folder = await part(parts, "kernel", key, build);
  const { modules, sha256, ...facts } = JSON.parse(await readFile(join(folder, "facts.json"), "utf8")) as Facts;
  return {
    ...facts,
    key,
    image: { path: join(folder, "kernel"), sha256 },
    modules: modules.map((name) => ({ name, path: join(folder, name) })),
  };
}

async function build(folder: string): Promise<void> {
  const machine = await architecture();
  if (machine !== "amd64") throw new Error(`capsules run on amd64 so far; this machine is ${machine}`);
  await refreshIndexes();
  const candidate = await kernelCandidate(metapackage);
  const scratch = join(folder, "unpacked");
  await mkdir(scratch);
  await downloadPackage(candidate, scratch);
  const archive = (await readdir(scratch)).find((name) => name.endsWith(".deb"));
  if (archive === undefined) throw new Error(`apt-get downloaded no ${candidate.name}`);
  await runProgram("dpkg-deb", ["-x", join(scratch, archive), scratch]);

  const release = candidate.name.replace("linux-image-", "");
  const image = join(folder, "kernel");
  await copyFile(join(scratch, "boot", `vmlinuz-${release}`), image);
  await chmod(image, 0o444);
  const modules = await copyModules(scratch, release, folder);
  await rm(scratch, { recursive: true });
  const sha256 = await sha256OfFile(image);
  const facts: Facts = { release, package: candidate.name, packageVersion: candidate.version, sha256, modules };
  await writeFile(join(folder, "facts.json"), `${JSON.stringify(facts, null, 2)}\n`);
}

async function copyModules(unpacked: string, release: string, folder: string): Promise<string[]> {
  const tree = join(unpacked, "lib", "modules", release);
  const builtIn = new Set((await readFile(join(tree, "modules.builtin"), "utf8")).split("\n").map(moduleName));
  const files = await readdir(join(tree, "kernel"), { recursive: true });
  const names: string[] = [];
  for (const driver of drivers) {
    if (builtIn.has(driver)) continue;
    const file = files.find((path) => /\.ko(\.xz)?$/.test(path) && moduleName(path) === driver);
    if (file === undefined) throw new Error(`kernel ${release} has no driver ${driver}`);
    const name = `${driver}.ko`;
    await copyFile(join(tree, "kernel", file), join(folder, file.endsWith(".xz") ? `${name}.xz` : name));
    if (file.endsWith(".xz")) await runProgram("xz", ["--decompress", join(folder, `${name}.xz`)]);
    names.push(name);
  }
  return names;
}

/** "kernel/drivers/block/virtio_blk.ko.xz" → "virtio_blk" */
export function moduleName(path: string): string {
  return path
    .replace(/^.*\//, "")
    .replace(/\.ko(\.\w+)?$/, "")
    .replaceAll("-", "_");
}
