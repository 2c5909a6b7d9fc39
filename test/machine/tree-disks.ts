/**
 * The disks with the project: the working tree with its packages (/opt/capsule), and a data folder (/var/lib/capsule) that
 * has the built image, agent and dashboard, so that `./dev install` in the machine builds nothing and needs no network.
 *
 *   <machines>/tree-<key>/disk.ext4      <machines>/data-<key>/disk.ext4
 */
import { createHash } from "node:crypto";
import { mkdir, readFile, readlink, rm, truncate, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { exists } from "../../guest/image/parts.ts";
import { runProgram } from "../../guest/image/program.ts";
import { built } from "./built.ts";
import type { Shape } from "./shape.ts";

const repository = resolve(import.meta.dirname, "../..");
const name = "disk.ext4";
const treeMb = 2_048;
/** Where the tree lies in the machine. */
export const treePath = "/opt/capsule";
const agentPath = "guest/agent/target/release/capsule-agent";

/** The folder with everything that `./dev` has built. */
export interface Sources {
  dataDir: string;
}

export async function treeDisk(machines: string, sources: Sources): Promise<string> {
  const files = await trackedFiles();
  const hash = createHash("sha256").update(await readFile(join(sources.dataDir, "agent.stamp")));
  for (const name of files) hash.update(`${name}\0`).update(await contentOf(join(repository, name)));
  return disk(machines, "tree", hash.digest("hex"), treeMb, async (stage) => {
    await runProgram("sh", ["-c", stageTree, "sh", stage, await agentOf(sources), treePath], {
      cwd: repository,
      input: files.join("\0"),
    });
  });
}

export async function dataDisk(machines: string, sources: Sources, { dataMb }: Shape): Promise<string> {
  const hash = createHash("sha256").update(await readFile(import.meta.filename));
  hash.update(await readlink(join(sources.dataDir, "images/minimal/current")));
  for (const name of ["agent.stamp", "web.stamp"]) hash.update(await readFile(join(sources.dataDir, name)));
  hash.update(String(dataMb));
  return disk(machines, "data", hash.digest("hex"), dataMb, async (stage) => {
    const [ofAgent] = (await readFile(join(sources.dataDir, "agent.stamp"), "utf8")).split("\n");
    await runProgram("sh", ["-c", stageData, "sh", stage], { cwd: sources.dataDir });
    await writeFile(join(stage, "agent.stamp"), `${ofAgent}\n${join(treePath, agentPath)}\n`);
  });
}

const stageTree = `set -e
  tar --null --no-recursion -cf - -T - | tar -xf - -C "$1"
  cp -a node_modules "$1/"
  rm -rf "$1/node_modules/.cache"
  mkdir -p "$1/.capsule" "$1/$(dirname ${agentPath})"
  cp "$2" "$1/${agentPath}"
  ln -s /var/lib/capsule/images "$1/.capsule/images"`;

const stageData = `set -e
  cp -a images web web.stamp "$1/"
  chmod 700 "$1"`;

/** Everything in the image is root's: as root by changing the owners, else inside fakeroot. */
const makeImage = `set -e
  chown -R 0:0 "$1"
  mke2fs -q -F -t ext4 -m 0 -E root_owner=0:0,assume_storage_prezeroed=1 -d "$1" "$2"`;

async function trackedFiles(): Promise<string[]> {
  const args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
  const names = (await runProgram("git", args, { cwd: repository })).split("\0").filter(Boolean);
  const there = await Promise.all(names.map((name) => exists(join(repository, name)))); // one may be deleted
  return [...new Set(names.filter((_, index) => there[index]))].sort();
}

async function contentOf(path: string): Promise<Buffer | string> {
  return readFile(path).catch(() => readlink(path));
}

async function agentOf({ dataDir }: Sources): Promise<string> {
  const [, path] = (await readFile(join(dataDir, "agent.stamp"), "utf8")).split("\n");
  if (path === undefined || path === "") throw new Error(`${dataDir}/agent.stamp names no agent; run ./dev image`);
  return path;
}

/** The file system of what `fill` puts into a folder. */
async function disk(
  machines: string,
  kind: "tree" | "data",
  key: string,
  sizeMb: number,
  fill: (stage: string) => Promise<void>,
): Promise<string> {
  const folder = await built(machines, kind, key, async (scratch) => {
    const stage = join(scratch, "stage");
    await mkdir(stage);
    await fill(stage);
    const path = join(scratch, name);
    await writeFile(path, "");
    await truncate(path, sizeMb * 2 ** 20);
    const shell = ["sh", "-c", makeImage, "sh", stage, path];
    const [program, ...args] = process.getuid?.() === 0 ? shell : ["fakeroot", ...shell];
    await runProgram(program!, args);
    await rm(stage, { recursive: true });
  });
  return join(folder, name);
}
