/** The program build.ts on data folders whose parts are there, so that nothing is downloaded. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { type ImageManifest, loadImage } from "../../src/host/images/images.ts";
import { initrdKey } from "./initrd.ts";
import { sha256OfFile } from "./inputs.ts";
import { kernelKey } from "./kernel.ts";
import { publishImage } from "./manifest.ts";
import { npmPackages } from "./node.ts";
import { partFolder } from "./parts.ts";
import { dev, minimal, type Recipe } from "./recipes.ts";
import { rootKey } from "./root.ts";

const diskMb = 512;
const hex = (digit: string) => digit.repeat(64);
let dataDir: string;
let images: string;
let agent: string;

beforeEach(async () => {
  dataDir = mkdtempSync(join(tmpdir(), "build-"));
  images = join(dataDir, "images");
  agent = join(dataDir, "agent");
  writeFileSync(agent, "agent");
});

afterEach(() => rmSync(dataDir, { recursive: true }));

/** The inputs of an image that is up to date. */
async function inputsOf(recipe: Recipe): Promise<ImageManifest["inputs"]> {
  const sha256 = await sha256OfFile(agent);
  return {
    agent: sha256,
    initrd: await initrdKey(sha256),
    kernel: await kernelKey(),
    root: await rootKey(recipe, diskMb),
  };
}

function makePart(name: "kernel" | "root", key: string, facts: object): string {
  const folder = partFolder(images, name, key);
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, name === "kernel" ? "kernel" : "root.ext4"), name);
  writeFileSync(join(folder, "facts.json"), JSON.stringify({ sha256: hex("1"), ...facts }));
  return folder;
}

/** Publishes an image with parts; `changed` inputs differ from those of an image that is up to date. */
async function publish(recipe: Recipe, changed: Partial<ImageManifest["inputs"]> = {}): Promise<void> {
  const inputs = { ...(await inputsOf(recipe)), ...changed };
  const kernel = { release: "6.1.0", package: "linux-image-6.1.0", packageVersion: "6.1.1-1", modules: [] };
  const packages = Object.fromEntries(recipe.hasNode ? npmPackages.map(({ name }) => [name, "1"]) : []);
  const kernelPart = makePart("kernel", inputs.kernel, kernel);
  const rootPart = makePart("root", inputs.root, { packages });
  await publishImage(images, {
    name: recipe.name,
    kernel: { ...kernel, key: inputs.kernel, image: { path: join(kernelPart, "kernel"), sha256: hex("1") } },
    root: { key: inputs.root, image: { path: join(rootPart, "root.ext4"), sha256: hex("1") }, diskBytes: 4, packages },
    initrd: Buffer.from("initrd"),
    inputs,
  });
}

/** Runs the program without any of Debian's tools. */
function build(...names: string[]) {
  const args = [join(import.meta.dirname, "build.ts"), "--agent", agent, "--data", dataDir, ...names];
  const env = { PATH: "/nonexistent", HOME: dataDir, CAPSULE_DISK_MB: String(diskMb) };
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { encoding: "utf8", env, timeout: 60_000 });
  return { status, stderr, folders: stdout.split("\n").filter(Boolean) };
}

const current = (name: string) => join(images, name, loadImage(dataDir, name).hash);

test("images that are up to date are left alone, and the parts of all of them stay", async () => {
  await publish(minimal);
  assert.deepEqual(build(), { status: 0, stderr: "", folders: [current("minimal")] });
  await publish(dev);
  const stray = makePart("root", hex("d"), {});
  for (const names of [[], ["dev"], ["minimal", "dev"]]) {
    assert.deepEqual(build(...names), { status: 0, stderr: "", folders: [current("minimal"), current("dev")] });
  }
  assert.ok(!existsSync(stray));
  assert.equal(readdirSync(join(images, "parts")).length, 3, "a kernel and two roots");
});

test("an image that was built before gets a new agent, too, from the parts that are there", async () => {
  await publish(minimal, { agent: hex("a") });
  await publish(dev, { agent: hex("a") });
  const old = [current("minimal"), current("dev")];
  const { status, folders } = build();
  assert.equal(status, 0);
  assert.deepEqual(folders, [current("minimal"), current("dev")]);
  for (const [index, folder] of folders.entries()) assert.notEqual(folder, old[index]);
  assert.equal(loadImage(dataDir, "dev").manifest.inputs.agent, (await inputsOf(dev)).agent);
});

test("an image that was not asked for stays as it was when it cannot be built anew, and fails nothing", async () => {
  await publish(minimal);
  await publish(dev, { root: hex("b") });
  const old = current("dev");
  const unasked = build();
  assert.match(unasked.stderr, /image: dev stays as it was, because .*npm is not installed/);
  assert.deepEqual([unasked.status, unasked.folders], [0, [current("minimal")]]);
  const asked = build("dev");
  assert.match(asked.stderr, /^image: npm is not installed$/m);
  assert.equal(asked.status, 1);
  assert.equal(current("dev"), old);
  assert.ok(existsSync(partFolder(images, "root", hex("b"))));
});

test("a damaged image is built again", async () => {
  await publish(minimal);
  await publish(dev);
  const folder = current("dev");
  rmSync(join(folder, "initrd"));
  assert.deepEqual(build(), { status: 0, stderr: "", folders: [current("minimal"), folder] });
  assert.ok(existsSync(join(folder, "initrd")));
});

test("an image of the same name that was made otherwise is built only when it is asked for", async () => {
  await publish(minimal);
  await publish({ ...minimal, name: "dev" }, { root: hex("b") });
  assert.deepEqual(build(), { status: 0, stderr: "", folders: [current("minimal")] });
  assert.equal(build("dev").status, 1);
});

test("an image without a recipe is refused by name", () => {
  const { status, stderr } = build("nonsense");
  assert.deepEqual({ status, stderr }, { status: 1, stderr: 'image: there is no recipe of an image "nonsense"\n' });
});
