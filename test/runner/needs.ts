/**
 * Packages and builds that test files need, found in the files and in the modules of test/ that they import: a test of a lock
 * table needs Node alone.
 */
import { existsSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { root } from "./groups.ts";

/** `./dev` knows each: packages of Debian, and builds. */
export type Need =
  | "agent"
  | "cc"
  | "ceph"
  | "chromium"
  | "clients"
  | "image"
  | "machine"
  | "postgres"
  | "rust"
  | "tmux"
  | "vm";

/** Paths from the root, and texts of files, that tell a need. */
const signs: { need: Need; path?: RegExp; text?: RegExp }[] = [
  { need: "agent", path: /^test\/agent-process\.ts$/ },
  { need: "cc", text: /execFileSync\("cc"/ },
  { need: "ceph", path: /^test\/cluster\/ceph-server\.ts$/ },
  { need: "chromium", path: /^test\/browser\// },
  { need: "clients", path: /^test\/clients\// },
  { need: "image", path: /^test\/(server|machine\/machine|operations\/bare-root|network\/network-vm)\.ts$/ },
  { need: "machine", path: /^test\/machine\/machine\.ts$/ },
  { need: "postgres", path: /^test\/cluster\/postgres-server\.ts$/ },
  { need: "rust", path: /^test\/operations\/release-before\.ts$/ },
  { need: "tmux", path: /^test\/terminal\/emulator\.ts$/ },
  {
    need: "vm",
    path: /^(src\/(vmm|host)|guest\/image|test\/(server\.ts$|small-disk\.ts$|faults|jail|network|operations))/,
  },
];

export function needsOf(files: readonly string[]): Need[] {
  const needs = new Set<Need>();
  for (const file of withImports(files)) {
    const path = relative(root, file);
    const text = readFileSync(file, "utf8");
    for (const sign of signs) if (sign.path?.test(path) || sign.text?.test(text)) needs.add(sign.need);
  }
  // Servers of the tests then link built images; a machine takes its own.
  if (process.env.CAPSULE_IMAGES_FROM !== undefined && !needs.has("machine")) needs.delete("image");
  return [...needs].sort();
}

/** The files, and all modules of test/ that they import, directly or through one another. */
function withImports(files: readonly string[]): Set<string> {
  const found = new Set<string>();
  const pending = files.map((file) => resolve(file));
  for (let file = pending.pop(); file !== undefined; file = pending.pop()) {
    if (found.has(file) || !existsSync(file)) continue;
    found.add(file);
    for (const [, target = ""] of readFileSync(file, "utf8").matchAll(/(?:from|import) "(\.[^"]+\.ts)"/g)) {
      const imported = resolve(dirname(file), target);
      if (imported.startsWith(join(root, "test/"))) pending.push(imported);
    }
  }
  return found;
}
