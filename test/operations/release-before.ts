/**
 * Builds the release before this one from the repository's history: its sources, agent and image, by its own scripts. The
 * result is kept beside the built images, in a folder named by the commit.
 */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { copyFile, mkdir, mkdtemp, readdir, readFile, rename, rm } from "node:fs/promises";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { hasCommit, unpackCommit, within } from "../past-sources.ts";

/** The last commit of the release before. Its data folders must open in this version. */
export const releaseBefore = "440b70388501a4e3e7bbfbdad0290dfa41e6ea09";

export interface Release {
  /** Its server's program. */
  program: string;
  images: string;
}

const run = promisify(execFile);
const repository = resolve(import.meta.dirname, "../..");
const store = resolve(process.env.CAPSULE_IMAGES_FROM ?? join(repository, ".capsule/images"), "..");

/** Why it cannot be built here; undefined when it can. */
export function missingHistory(): string | undefined {
  return hasCommit(releaseBefore)
    ? undefined
    : `the history here does not reach back to the release before, ${releaseBefore}`;
}

export async function buildReleaseBefore(): Promise<Release> {
  const releases = join(store, "releases");
  const folder = join(releases, releaseBefore);
  if (!existsSync(folder)) {
    await mkdir(releases, { recursive: true });
    for (const name of await readdir(releases)) await rm(join(releases, name), { recursive: true });
    const half = await mkdtemp(join(releases, ".new-"));
    await unpackCommit(releaseBefore, half);
    await buildImage(half, await buildAgent(half));
    await rename(half, folder);
  }
  return { program: join(folder, "src/main.ts"), images: join(folder, ".capsule/images") };
}

/** Resolves with the agent's path. This version's agent is used if it has the same sources, by the stamp of `./dev`. */
async function buildAgent(folder: string): Promise<string> {
  const list = "find guest/agent -name target -prune -o -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum";
  const { stdout: sources } = await run("bash", ["-c", list], within(folder));
  const [noted, agent = ""] = (await readFile(join(store, "agent.stamp"), "utf8").catch(() => "")).split("\n");
  if (noted === sources.trimEnd() && existsSync(agent)) return agent;
  const { stdout: built } = await run("guest/agent/build", within(folder));
  return built.trimEnd().split("\n").at(-1)!;
}

/** Builds the image, with this version's kernel and root file system if their inputs are equal. */
async function buildImage(folder: string, agent: string): Promise<void> {
  const data = join(folder, ".capsule");
  await mkdir(join(data, "images"), { recursive: true });
  await linkTree(join(store, "images/parts"), join(data, "images/parts"));
  await run(process.execPath, ["guest/image/build.ts", "--agent", agent, "--data", data], within(folder));
  await copyFile(join(store, "accelerator.json"), join(data, "accelerator.json")).catch(() => {}); // without it, the server probes for KVM
}

/** Puts this version's image beside that of the release before and makes it the current one, as `./dev install` does. */
export async function upgradeImages(dataDir: string, { images: before }: Release): Promise<void> {
  const images = join(dataDir, "images");
  await rm(images); // a link to the folder they were built in
  await mkdir(join(images, "minimal"), { recursive: true });
  for (const from of [before, join(store, "images")]) {
    for (const name of await readdir(join(from, "minimal"))) {
      const to = join(images, "minimal", name);
      if (name === "current") await rm(to, { force: true });
      if (!existsSync(to)) await linkTree(join(from, "minimal", name), to);
    }
  }
}

/** Copies a folder by hard links, or as files when it is on another file system. */
async function linkTree(from: string, to: string): Promise<void> {
  await run("cp", ["-al", from, to]).catch(() => run("cp", ["-a", "--sparse=always", from, to]));
}
