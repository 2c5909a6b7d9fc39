/** A build of an image as a folder that hosts share. */
import { join } from "node:path";
import { runHelper } from "../../vmm/oom-score.ts";
import { readJson } from "../disk/files.ts";
import { type Image, type ImageManifest, imageFiles, manifestProblem } from "../images/images.ts";
import { requireExactly, requireSmall, setModes } from "./exact-tree.ts";
import type { SharedFolder } from "./shared-folder.ts";

const manifestName = "manifest.json";
const names = [manifestName, ...imageFiles];
/** A root disk has gigabytes, mostly holes, and is read on another thread than the server's. */
const digestMs = 300_000;

export function imageIn(folder: string, { manifest }: Pick<Image, "manifest">): SharedFolder {
  const files = names.map((name) => ({ name, path: join(folder, name) }));
  return { sha256: manifest.files["root.ext4"].sha256, layers: [], files };
}

/** Throws an Error unless the folder has this build, whole and with nothing beside it. */
export async function requireImage(folder: string, { name, hash }: Pick<Image, "name" | "hash">): Promise<void> {
  await requireExactly(folder, names);
  await requireSmall(join(folder, manifestName));
  const manifest = await readJson<ImageManifest>(join(folder, manifestName));
  const problem = manifestProblem(manifest);
  if (problem !== undefined || manifest === undefined) throw new Error(`its manifest ${problem}`);
  if (manifest.name !== name || manifest.hash !== hash) throw new Error("its manifest is that of another image");
  for (const file of imageFiles) {
    if ((await digestOf(join(folder, file))) !== manifest.files[file].sha256)
      throw new Error(`its ${file} has other bytes than its manifest says`);
  }
  await setModes(folder, { folder: 0o755, fileOf: (each) => (each === manifestName ? 0o644 : 0o444) });
}

async function digestOf(path: string): Promise<string | undefined> {
  const { stdout } = await runHelper("sha256sum", ["--", path], { timeout: digestMs, maxBuffer: 65_536 });
  return /^\\?([0-9a-f]{64}) /.exec(stdout)?.[1];
}
