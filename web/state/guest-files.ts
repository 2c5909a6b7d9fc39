/** Files inside a capsule, as the file browser shows them: paths, order, and the start of a text. */
import type { FileEntry, Files } from "../../src/sdk/sdk.ts";

export function join(folder: string, name: string): string {
  if (name.startsWith("/")) return name;
  return folder === "/" ? `/${name}` : `${folder}/${name}`;
}

/** A path as it was typed, seen from a folder: absolute, without `.`, `..` and a slash at the end. */
export function resolved(folder: string, typed: string): string {
  const parts: string[] = [];
  for (const part of join(folder, typed).split("/")) {
    if (part === "..") parts.pop();
    else if (part !== "" && part !== ".") parts.push(part);
  }
  return `/${parts.join("/")}`;
}

/** The folders on the way to `path`, the root first and `path` last. */
export function breadcrumbs(path: string): { name: string; path: string }[] {
  const found = [{ name: "/", path: "/" }];
  let at = "";
  for (const name of path.split("/").filter((part) => part !== "")) {
    at += `/${name}`;
    found.push({ name, path: at });
  }
  return found;
}

/** Folders first, then by name, numbers in names by value. */
export function sorted(entries: readonly FileEntry[]): FileEntry[] {
  const order = new Intl.Collator("en", { numeric: true });
  return [...entries].sort((a, b) => {
    const folders = Number(b.type === "directory") - Number(a.type === "directory");
    return folders || order.compare(a.name, b.name);
  });
}

/** Whether a symbolic link leads to a folder: the listing of any other link is the link itself. */
export async function isFolder(files: Files, path: string): Promise<boolean> {
  const [first] = await files.list(path);
  return first?.path !== path;
}

/** The first bytes of a file; `isCut`: there are more. */
export interface FileStart {
  bytes: Uint8Array;
  isCut: boolean;
}

export async function readStart(files: Files, path: string, maxBytes: number): Promise<FileStart> {
  const reader = (await files.readStream(path)).getReader();
  const pieces: Uint8Array<ArrayBuffer>[] = [];
  let readBytes = 0;
  while (readBytes <= maxBytes) {
    const { value, done } = await reader.read();
    if (done) break;
    pieces.push(value);
    readBytes += value.length;
  }
  await reader.cancel();
  const bytes = new Uint8Array(await new Blob(pieces).arrayBuffer());
  return { bytes: bytes.subarray(0, maxBytes), isCut: readBytes > maxBytes };
}

/** Undefined when the bytes are not UTF-8 text. A character that is cut off at the end is left out. */
export function textOf(bytes: Uint8Array): string | undefined {
  if (bytes.includes(0)) return undefined;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: true });
  } catch {
    return undefined;
  }
}

/** Why this file cannot be edited as a text without a change to what is not seen; undefined: it can. */
export function editRefusal({ bytes, isCut }: FileStart): string | undefined {
  const text = textOf(bytes);
  if (text === undefined) return "Only text can be edited";
  if (isCut) return "The file is too large to be edited here";
  if (text.includes("\r")) return "An edit here would change its line ends (CR)";
  const hasMark = bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf;
  return hasMark ? "An edit here would remove its byte order mark" : undefined;
}
