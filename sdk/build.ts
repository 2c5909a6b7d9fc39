/**
 * Builds the npm package of src/sdk: plain JavaScript with types, without dependencies. The command line is one more
 * file of the package, independent of the SDK. The name is not ours at the npm registry, so the package is private.
 *
 *   node sdk/build.ts FOLDER [TARBALL]     the package as a folder, and packed: npm install takes both
 */
import { execFileSync } from "node:child_process";
import {
  chmodSync,
  copyFileSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { buildSync } from "esbuild";

const entry = "sdk/sdk.js";
const program = "capsule.js";
const here = import.meta.dirname;
const repository = resolve(here, "..");

if (process.argv[1] === import.meta.filename) {
  const [folder, tarball] = process.argv.slice(2);
  if (folder === undefined) throw new Error("usage: node sdk/build.ts FOLDER [TARBALL]");
  build(resolve(folder));
  if (tarball !== undefined) pack(resolve(folder), resolve(tarball));
}

/** The folder is replaced as a whole. */
export function build(folder: string): void {
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  const compiler = join(repository, "node_modules/typescript/bin/tsc");
  execFileSync(process.execPath, [compiler, "-p", here, "--outDir", folder], { stdio: "inherit" });
  keepReachable(folder);
  bundleProgram(join(folder, program));
  copyFileSync(join(repository, "docs/SDK.md"), join(folder, "README.md"));
  copyFileSync(join(repository, "LICENSE"), join(folder, "LICENSE"));
  writeFileSync(join(folder, "package.json"), `${JSON.stringify(about(), undefined, 2)}\n`);
}

/** The same files make the same bytes. The tarball is replaced by rename: a server may be reading it. */
export function pack(folder: string, tarball: string): void {
  const made = `${tarball}.${process.pid}`;
  const same = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"];
  execFileSync("tar", ["--create", "--gzip", "--file", made, ...same, "--transform=s,^[.],package,", "."], {
    cwd: folder,
    stdio: "inherit",
  });
  renameSync(made, tarball);
}

function about(): object {
  const { version, license } = JSON.parse(readFileSync(join(repository, "package.json"), "utf8"));
  const types = `./${entry.replace(/js$/, "d.ts")}`;
  return {
    name: "capsule-sdk",
    version,
    private: true,
    description: "Sandboxes that are small virtual machines: the client of a Capsule service.",
    license,
    type: "module",
    sideEffects: false,
    engines: { node: ">=20" },
    bin: { capsule: `./${program}` },
    // Tools without exports, such as TypeScript's resolution node10, read these.
    ...{ main: `./${entry}`, types },
    exports: { ".": { types, default: `./${entry}` } },
  };
}

/** Bundles `ws`, which calls require() for Node's modules: the banner defines it. */
function bundleProgram(outfile: string): void {
  const require = 'import { createRequire } from "node:module"; const require = createRequire(import.meta.url);';
  buildSync({
    entryPoints: [join(here, "program.ts")],
    outfile,
    bundle: true,
    platform: "node",
    target: "node20",
    format: "esm",
    banner: { js: require },
    logLevel: "warning",
  });
  chmodSync(outfile, 0o755);
}

/** Deletes files that only erased type imports lead to; of src/wire a few constants remain. */
function keepReachable(folder: string): void {
  const reached = new Set<string>();
  const visit = (file: string): void => {
    if (reached.has(file)) return;
    reached.add(file);
    const path = join(folder, file);
    // Declarations keep the endings .ts of the sources.
    const text = readFileSync(path, "utf8").replace(/(from "\.[^"]+)\.ts"/g, '$1.js"');
    writeFileSync(path, text);
    for (const [, target] of text.matchAll(/from "(\.[^"]+)\.js"/g)) {
      const next = relative(folder, join(folder, dirname(file), target!));
      visit(next + (file.endsWith(".d.ts") ? ".d.ts" : ".js"));
    }
  };
  visit(entry);
  visit(entry.replace(/js$/, "d.ts"));
  for (const file of readdirSync(folder, { recursive: true, encoding: "utf8" })) {
    if (/\.(js|ts)$/.test(file) && !reached.has(file)) rmSync(join(folder, file));
  }
}
