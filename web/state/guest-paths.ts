/** Paths inside a capsule, as the file browser needs them. */
import type { FileEntry } from "../../src/sdk/sdk.ts";

export function join(folder: string, name: string): string {
  if (name.startsWith("/")) return name;
  return folder === "/" ? `/${name}` : `${folder}/${name}`;
}

/** The folders on the way to `path`, the root first and `path` last. */
export function crumbs(path: string): { name: string; path: string }[] {
  const found = [{ name: "/", path: "/" }];
  let at = "";
  for (const name of path.split("/").filter((part) => part !== "")) {
    at += `/${name}`;
    found.push({ name, path: at });
  }
  return found;
}

/** Folders first, then by name as people sort. */
export function sorted(entries: readonly FileEntry[]): FileEntry[] {
  const order = new Intl.Collator("en", { numeric: true });
  return [...entries].sort((a, b) => {
    const folders = Number(b.type === "directory") - Number(a.type === "directory");
    return folders || order.compare(a.name, b.name);
  });
}
