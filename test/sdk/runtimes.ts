/** The JavaScript runtimes that docs/SDK.md names, installed from npm into `.capsule/runtimes` once. */
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { root, run } from "./sdk-package.ts";

export interface Runtime {
  name: string;
  /** Resolves with its program. */
  program(): Promise<string>;
}

const folder = join(root, ".capsule/runtimes");

function fromNpm(name: string, version: string, program: string): () => Promise<string> {
  return async () => {
    const kept = join(folder, `${name.replace("/", "-")}-${version}`);
    const path = join(kept, "node_modules", name, program);
    if (existsSync(path)) return path;
    await mkdir(folder, { recursive: true });
    const made = await mkdtemp(join(folder, "new-"));
    try {
      // Without scripts: the packages are the programs themselves.
      const options = ["--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--loglevel=error"];
      await run("npm", ["install", "--prefix", made, ...options, `${name}@${version}`]);
      await rm(kept, { recursive: true, force: true });
      await rename(made, kept);
    } finally {
      await rm(made, { recursive: true, force: true });
    }
    return path;
  };
}

export const runtimes: Runtime[] = [
  { name: `Node ${process.version}`, program: async () => process.execPath },
  { name: "Node 20", program: fromNpm(`node-linux-${process.arch}`, "20.20.2", "bin/node") },
  {
    name: "Bun",
    program: fromNpm(`@oven/bun-linux-${process.arch === "x64" ? "x64-baseline" : "aarch64"}`, "1.4.5", "bin/bun"),
  },
];
