/**
 * The root file system: Debian from its own packages, packed into an ext4 image without mounting anything. The same
 * packages give the same bytes: times, UUIDs and hash seeds are fixed, and Debian's tools are told one date.
 */
import { chmod, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { proxyOptions, refreshIndexes, releaseSources, sourceLine } from "./apt.ts";
import { sha256OfFile } from "./inputs.ts";
import { nodeArchive, npmPackages } from "./node.ts";
import { type PartFile, type Parts, part } from "./parts.ts";
import { runProgram } from "./program.ts";
import { packagesOf, type Recipe, recipeKey } from "./recipes.ts";

const release = "bookworm";
const epochSec = 1_686_355_200; // 2023-06-10, the day Debian 12 was released
const uuid = "63617073-756c-4500-8000-6d696e696d61";
const hashSeed = "63617073-756c-4500-8000-686173680000";

/** Neither manuals nor translations; licences stay. */
const leftOut = [
  "path-exclude=/usr/share/man/*",
  "path-exclude=/usr/share/info/*",
  "path-exclude=/usr/share/lintian/*",
  "path-exclude=/usr/share/doc/*",
  "path-include=/usr/share/doc/*/copyright",
  "path-exclude=/usr/share/locale/*",
  "path-include=/usr/share/locale/locale.alias",
];

export interface Root {
  /** Inputs' key. */
  key: string;
  /** The disk. */
  image: PartFile;
  diskBytes: number;
  /** Version by package name. */
  packages: Record<string, string>;
}

type Facts = Pick<Root, "packages"> & { sha256: string };

export async function rootKey(recipe: Recipe, diskMb: number): Promise<string> {
  return recipeKey(recipe, { release, diskMb });
}

export async function root(parts: Parts, recipe: Recipe, diskMb: number): Promise<Root> {
  const key = await rootKey(recipe, diskMb);
  const diskBytes = diskMb * 1024 * 1024;
  const folder = await part(parts, "root", key, (scratch) => build(scratch, recipe, diskBytes));
  const { sha256, packages } = JSON.parse(await readFile(join(folder, "facts.json"), "utf8")) as Facts;
  return { key, image: { path: join(folder, "root.ext4"), sha256 }, diskBytes, packages };
}

async function build(folder: string, recipe: Recipe, diskBytes: number): Promise<void> {
  const archive = join(folder, "root.tar");
  const local = recipe.hasNode ? join(folder, "local.tar") : undefined;
  if (local !== undefined) await nodeArchive(local, epochSec);
  await bootstrap(archive, await packagesOf(recipe));
  const status = await runProgram("tar", ["-xOf", archive, "./var/lib/dpkg/status"]);
  const image = join(folder, "root.ext4");
  await writeFile(image, "");
  await truncate(image, diskBytes);
  await makeFileSystem({ archive, local, tree: join(folder, "tree"), image });
  await fixTimes(image);
  await chmod(image, 0o444);
  await rm(archive);
  if (local !== undefined) await rm(local);
  const packages = { ...installedPackages(status), ...(recipe.hasNode ? versionsOf(npmPackages) : {}) };
  const facts: Facts = { sha256: await sha256OfFile(image), packages };
  await writeFile(join(folder, "facts.json"), `${JSON.stringify(facts, null, 2)}\n`);
}

async function bootstrap(archive: string, packages: string[]): Promise<void> {
  const here = import.meta.dirname;
  const apt = ['Acquire::Languages "none"', ...(await proxyOptions())];
  const options = [
    "--variant=minbase",
    "--format=tar",
    `--include=${packages.join(",")}`,
    ...leftOut.map((line) => `--dpkgopt=${line}`),
    ...apt.map((line) => `--aptopt=${line}`),
    // Handed over as text: without root, mmdebstrap runs as a user who may not read this folder.
    '--customize-hook=bash -c "$CAPSULE_CUSTOMIZE" customize "$1" "$CAPSULE_RELEASE"',
  ];
  await refreshIndexes();
  const sources = (await releaseSources(release)).map(sourceLine);
  await runProgram("mmdebstrap", [...options, release, archive, "-"], {
    input: `${sources.join("\n")}\n`,
    environment: {
      SOURCE_DATE_EPOCH: String(epochSec),
      CAPSULE_CUSTOMIZE: await readFile(join(here, "customize"), "utf8"),
      CAPSULE_RELEASE: release,
    },
  });
}

interface FileSystem {
  archive: string;
  /** Unpacked into usr/local. */
  local: string | undefined;
  /** Scratch folder. */
  tree: string;
  image: string;
}

/** Owners in the archives become owners in the image: as root by unpacking them, else inside fakeroot. */
async function makeFileSystem({ archive, local = "", tree, image }: FileSystem): Promise<void> {
  const script = `set -e
    mkdir "$3"
    tar --numeric-owner -xpf "$1" -C "$3"
    [ -z "$2" ] || tar --numeric-owner -xpf "$2" -C "$3/usr/local"
    touch --date="@$SOURCE_DATE_EPOCH" "$3"
    mke2fs -q -F -t ext4 -d "$3" -U ${uuid} -m 0 -J size=16 -O ^resize_inode \
      -E hash_seed=${hashSeed},root_owner=0:0,assume_storage_prezeroed=1 "$4"
    rm -rf "$3"`;
  const shell = ["sh", "-c", script, "sh", archive, local, tree, image];
  const command = process.getuid?.() === 0 ? shell : ["fakeroot", ...shell];
  const environment = { SOURCE_DATE_EPOCH: String(epochSec), E2FSPROGS_FAKE_TIME: String(epochSec) };
  await runProgram(command[0]!, command.slice(1), { environment });
}

/** mke2fs copies the moment of unpacking into every inode; here it becomes the one date. */
async function fixTimes(image: string): Promise<void> {
  const header = await runProgram("dumpe2fs", ["-h", image]);
  const used = numberAfter(header, "Inode count") - numberAfter(header, "Free inodes");
  const firstInode = numberAfter(header, "First inode");
  const inodes = [2, ...Array.from({ length: used - firstInode + 1 }, (_, index) => firstInode + index)];
  const fields = ["ctime", "atime"];
  const commands = inodes.flatMap((inode) => fields.map((field) => `set_inode_field <${inode}> ${field} @${epochSec}`));
  await runProgram("debugfs", ["-w", "-f", "-", image], {
    input: `${commands.join("\n")}\n`,
    environment: { E2FSPROGS_FAKE_TIME: String(epochSec) },
  });
}

function numberAfter(text: string, label: string): number {
  const found = new RegExp(`^${label}:\\s+(\\d+)$`, "m").exec(text);
  if (found === null) throw new Error(`dumpe2fs does not say "${label}"`);
  return Number(found[1]);
}

/** From dpkg's own record. */
export function installedPackages(status: string): Record<string, string> {
  const versions = status.split("\n\n").flatMap((paragraph): [string, string][] => {
    const name = /^Package: (\S+)$/m.exec(paragraph)?.[1];
    const version = /^Version: (\S+)$/m.exec(paragraph)?.[1];
    const isInstalled = /^Status: \S+ \S+ installed$/m.test(paragraph);
    return name !== undefined && version !== undefined && isInstalled ? [[name, version]] : [];
  });
  return Object.fromEntries(versions.sort(([a], [b]) => (a < b ? -1 : 1)));
}

function versionsOf(packages: readonly { name: string; version: string }[]): Record<string, string> {
  return Object.fromEntries(packages.map(({ name, version }) => [name, version]));
}
