/**
 * Keys of image parts: hashes of all inputs. A part is rebuilt exactly when its key changes. A key covers the code that
 * builds the part, but not the mirror's current packages, so that a machine without a network need not rebuild.
 */
import { createHash } from "node:crypto";
import { open, readFile } from "node:fs/promises";
import { join } from "node:path";

export type Settings = Record<string, string | number | string[]>;

/** Hash of settings and of files of this folder, by name and independent of their order. */
export async function keyOf(settings: Settings, files: string[]): Promise<string> {
  const hash = createHash("sha256");
  for (const name of Object.keys(settings).sort()) hash.update(`${JSON.stringify([name, settings[name]])}\n`);
  for (const file of [...files].sort()) {
    const content = await readFile(join(import.meta.dirname, file));
    hash.update(`${JSON.stringify([file, content.length])}\n`).update(content);
  }
  return hash.digest("hex");
}

export async function sha256OfFile(path: string): Promise<string> {
  const hash = createHash("sha256");
  const buffer = Buffer.alloc(4 * 1024 * 1024);
  const file = await open(path, "r");
  try {
    for (;;) {
      const { bytesRead } = await file.read(buffer, 0, buffer.length);
      if (bytesRead === 0) return hash.digest("hex");
      hash.update(buffer.subarray(0, bytesRead));
    }
  } finally {
    await file.close();
  }
}

/** Package names, one per line; "#" starts a comment. */
export function parsePackages(text: string): string[] {
  const names = text
    .split("\n")
    .map((line) => line.replace(/#.*/, "").trim())
    .filter((line) => line !== "");
  for (const name of names) {
    if (!/^[a-z0-9][a-z0-9+.-]+$/.test(name)) throw new Error(`not a package name: ${JSON.stringify(name)}`);
  }
  return [...new Set(names)].sort();
}
