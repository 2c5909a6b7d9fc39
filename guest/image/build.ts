/**
 * Builds the default image of a data folder, or the parts of it whose inputs changed:
 *
 *   node guest/image/build.ts --agent PATH [--data DIR] [--upgrade]
 *
 *   packages.txt, customize ──► root ─────────────┐
 *   linux-image-cloud-amd64 ──► kernel, drivers ──┼─► image
 *   agent ────────────────────► initrd ◄ drivers ─┘
 *
 * Prints the image's folder as the last line on standard output, and progress on standard error. The network is needed
 * only for a missing part, and for --upgrade, which installs the newest packages.
 */
import { readFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { type ImageManifest, loadImage } from "../../src/host/images/images.ts";
import { createDefaults } from "../../src/wire/defaults.ts";
import { CapsuleError, messageOf } from "../../src/wire/errors.ts";
import { initrd, initrdKey, readModules } from "./initrd.ts";
import { sha256OfFile } from "./inputs.ts";
import { kernel, kernelKey } from "./kernel.ts";
import { publishImage } from "./manifest.ts";
import { type Parts, prune } from "./parts.ts";
import { root, rootKey } from "./root.ts";

const name = createDefaults.template;

interface BuildOptions {
  dataDir: string;
  agent: string;
  diskMb: number;
  isUpgrade: boolean;
}

async function build(options: BuildOptions): Promise<string> {
  const { dataDir, agent, diskMb, isUpgrade } = options;
  const agentSha256 = await sha256OfFile(agent);
  const inputs: ImageManifest["inputs"] = {
    agent: agentSha256,
    initrd: await initrdKey(agentSha256),
    kernel: await kernelKey(),
    root: await rootKey(diskMb),
  };
  const images = join(dataDir, "images");
  const current = isUpgrade ? undefined : currentFolder(dataDir, inputs);
  if (current !== undefined) return join(images, name, current);

  const parts: Parts = { images, isUpgrade, say: (line) => console.error(line) };
  const kernelPart = await kernel(parts);
  const rootPart = await root(parts, diskMb);
  const archive = initrd(await readFile(agent), await readModules(kernelPart.modules));
  const folder = await publishImage(images, { name, kernel: kernelPart, root: rootPart, initrd: archive, inputs });
  await prune(parts, [dirname(kernelPart.image.path), dirname(rootPart.image.path)]);
  return folder;
}

/** The current image's hash if it is complete and was built from these inputs. */
function currentFolder(dataDir: string, inputs: ImageManifest["inputs"]): string | undefined {
  try {
    const { hash, manifest } = loadImage(dataDir, name);
    const keys = Object.keys(inputs) as (keyof typeof inputs)[];
    return keys.every((key) => manifest.inputs[key] === inputs[key]) ? hash : undefined;
  } catch (error) {
    if (error instanceof CapsuleError) return undefined;
    throw error;
  }
}

function parseOptions(argv: string[]): BuildOptions {
  const { values } = parseArgs({
    args: argv,
    options: { agent: { type: "string" }, data: { type: "string" }, upgrade: { type: "boolean" } },
  });
  if (values.agent === undefined) throw new Error("--agent PATH is missing: the agent's static binary");
  const diskMb = Number(process.env.CAPSULE_DISK_MB || 4096);
  if (!Number.isInteger(diskMb) || diskMb < 512 || diskMb > 1024 * 1024) {
    throw new Error("CAPSULE_DISK_MB must be a whole number between 512 and 1048576");
  }
  const repository = resolve(import.meta.dirname, "../..");
  const dataDir = resolve(values.data ?? (process.env.CAPSULE_DATA || join(repository, ".capsule")));
  return { dataDir, agent: resolve(values.agent), diskMb, isUpgrade: values.upgrade ?? false };
}

try {
  console.log(await build(parseOptions(process.argv.slice(2))));
} catch (error) {
  console.error(`image: ${messageOf(error)}`);
  process.exitCode = 1;
}
