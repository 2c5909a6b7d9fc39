/**
 * Builds images of a data folder, or the parts of them whose inputs changed: the default one and those that are named, and anew
 * each other one that was built before.
 *
 *   node guest/image/build.ts --agent PATH [--data DIR] [--upgrade] [NAME…]
 *
 *   packages.txt, customize ──► root ─────────────┐
 *   linux-image-cloud-amd64 ──► kernel, drivers ──┼─► image
 *   agent ────────────────────► initrd ◄ drivers ─┘
 *
 * Prints the images' folders on standard output, and progress on standard error. The network is needed only for a missing part,
 * and for --upgrade, which installs the newest packages.
 */
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { type Image, type ImageManifest, loadImage } from "../../src/host/images/images.ts";
import { CapsuleError, messageOf } from "../../src/wire/errors.ts";
import { initrd, initrdKey, readModules } from "./initrd.ts";
import { sha256OfFile } from "./inputs.ts";
import { type Kernel, kernel, kernelKey } from "./kernel.ts";
import { publishImage } from "./manifest.ts";
import { npmPackages } from "./node.ts";
import { type Parts, partFolder, prune } from "./parts.ts";
import { minimal, type Recipe, recipes } from "./recipes.ts";
import { root, rootKey } from "./root.ts";
import { shownStep } from "./shown-step.ts";

interface BuildOptions {
  dataDir: string;
  agent: string;
  diskMb: number;
  isUpgrade: boolean;
  /** Recipes that the caller asked for, the default one among them. */
  wanted: readonly Recipe[];
}

class Build {
  readonly #options: BuildOptions;
  readonly #parts: Parts;
  /** All images of a run have the same. */
  #kernel: Promise<Kernel> | undefined;

  constructor(options: BuildOptions) {
    this.#options = options;
    const say = (line: string) => console.error(line);
    this.#parts = { images: join(options.dataDir, "images"), isUpgrade: options.isUpgrade, say, begin: shownStep() };
  }

  /** An image that nobody asked for stays as it is when it cannot be built anew. */
  async run(): Promise<void> {
    const { wanted } = this.#options;
    for (const recipe of wanted) console.log(await this.#image(recipe));
    for (const recipe of recipes.filter((each) => !wanted.includes(each) && this.#wasBuilt(each))) {
      try {
        console.log(await this.#image(recipe));
      } catch (error) {
        console.error(`image: ${recipe.name} stays as it was, because it could not be built anew: ${messageOf(error)}`);
      }
    }
    await prune(
      this.#parts,
      recipes.flatMap((recipe) => this.#partsInUse(recipe)),
    );
  }

  async #image(recipe: Recipe): Promise<string> {
    const { agent, diskMb, isUpgrade } = this.#options;
    const { name } = recipe;
    const agentSha256 = await sha256OfFile(agent);
    const inputs: ImageManifest["inputs"] = {
      agent: agentSha256,
      initrd: await initrdKey(agentSha256),
      kernel: await kernelKey(),
      root: await rootKey(recipe, diskMb),
    };
    const { images } = this.#parts;
    const current = isUpgrade ? undefined : this.#current(name);
    const keys = Object.keys(inputs) as (keyof typeof inputs)[];
    if (current !== undefined && keys.every((key) => current.manifest.inputs[key] === inputs[key])) {
      return join(images, name, current.hash);
    }
    this.#kernel ??= kernel(this.#parts);
    const kernelPart = await this.#kernel;
    const rootPart = await root(this.#parts, recipe, diskMb);
    const archive = initrd(await readFile(agent), await readModules(kernelPart.modules));
    return publishImage(images, { name, kernel: kernelPart, root: rootPart, initrd: archive, inputs });
  }

  /** The current image of this name if it is complete. */
  #current(name: string): Image | undefined {
    try {
      return loadImage(this.#options.dataDir, name);
    } catch (error) {
      if (error instanceof CapsuleError) return undefined;
      throw error;
    }
  }

  /** True of a damaged image, too. An image of this name that its operator made has other packages. */
  #wasBuilt({ name, hasNode }: Recipe): boolean {
    if (!existsSync(join(this.#parts.images, name))) return false;
    const packages = this.#current(name)?.manifest.packages;
    return packages === undefined || !hasNode || npmPackages.every((each) => each.name in packages);
  }

  #partsInUse({ name }: Recipe): string[] {
    const image = this.#current(name);
    if (image === undefined) return [];
    const { images } = this.#parts;
    return (["kernel", "root"] as const).map((part) => partFolder(images, part, image.manifest.inputs[part]));
  }
}

function parseOptions(argv: string[]): BuildOptions {
  const { values, positionals } = parseArgs({
    args: argv,
    options: { agent: { type: "string" }, data: { type: "string" }, upgrade: { type: "boolean" } },
    allowPositionals: true,
  });
  if (values.agent === undefined) throw new Error("--agent PATH is missing: the agent's static binary");
  const diskMb = Number(process.env.CAPSULE_DISK_MB || 4096);
  if (!Number.isInteger(diskMb) || diskMb < 512 || diskMb > 1024 * 1024) {
    throw new Error("CAPSULE_DISK_MB must be a whole number between 512 and 1048576");
  }
  for (const name of positionals) {
    if (!recipes.some((recipe) => recipe.name === name)) throw new Error(`there is no recipe of an image "${name}"`);
  }
  const wanted = recipes.filter((recipe) => recipe === minimal || positionals.includes(recipe.name));
  const repository = resolve(import.meta.dirname, "../..");
  const dataDir = resolve(values.data ?? (process.env.CAPSULE_DATA || join(repository, ".capsule")));
  return { dataDir, agent: resolve(values.agent), diskMb, isUpgrade: values.upgrade ?? false, wanted };
}

try {
  await new Build(parseOptions(process.argv.slice(2))).run();
} catch (error) {
  console.error(`image: ${messageOf(error)}`);
  process.exitCode = 1;
}
