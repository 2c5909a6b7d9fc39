/** The initial file system: the agent as process 1 and the drivers needed for the root disk. */
import { readFile } from "node:fs/promises";
import { type CpioEntry, cpioArchive } from "./cpio.ts";
import { keyOf } from "./inputs.ts";

export interface Module {
  name: string;
  content: Uint8Array;
}

/** Uncompressed, because reading 1 MB is faster than decompressing it. `modules` in loading order. */
export function initrd(agent: Uint8Array, modules: Module[]): Buffer {
  const order = modules.map(({ name }) => `${name}\n`).join("");
  const directories = ["dev", "modules", "newroot", "proc", "sys"];
  const entries: CpioEntry[] = [
    ...directories.map((path): CpioEntry => ({ kind: "directory", path, mode: 0o755 })),
    { kind: "character_device", path: "dev/console", mode: 0o600, major: 5, minor: 1 },
    { kind: "file", path: "init", mode: 0o755, content: agent },
    { kind: "file", path: "modules/order", mode: 0o644, content: Buffer.from(order) },
    ...modules.map(({ name, content }): CpioEntry => ({ kind: "file", path: `modules/${name}`, mode: 0o644, content })),
  ];
  return cpioArchive(entries);
}

export async function initrdKey(agentSha256: string): Promise<string> {
  return keyOf({ agentSha256 }, ["initrd.ts", "cpio.ts"]);
}

export async function readModules(files: { name: string; path: string }[]): Promise<Module[]> {
  return Promise.all(files.map(async ({ name, path }) => ({ name, content: await readFile(path) })));
}
