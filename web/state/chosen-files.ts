/** Files that were chosen or dropped, with their paths. A folder stands for all files in it and below. */

/** `path`: relative to the folder that they are uploaded to. */
export interface Chosen {
  file: File;
  path: string;
}

/** Files of one upload. They are uploaded one by one; more come faster as an archive. */
export const filesMax = 10_000;
const entriesMax = 2 * filesMax;

const tooMany = () =>
  new Error(`More than ${filesMax.toLocaleString("en")} files: upload an archive, or use capsule cp.`);

/** The files of an input element. */
export async function chosenOf(files: readonly File[]): Promise<Chosen[]> {
  if (files.length > filesMax) throw tooMany();
  return files.map((file) => ({ file, path: file.webkitRelativePath || file.name }));
}

/** The files of a drop. To be called while the event is handled: later the browser has emptied the transfer. */
export function droppedIn({ items, files }: Pick<DataTransfer, "items" | "files">): Promise<Chosen[]> {
  const entries = [...items].flatMap((item) => (item.kind === "file" ? (item.webkitGetAsEntry() ?? []) : []));
  return entries.length === 0 ? chosenOf([...files]) : filesBelow(entries);
}

/** Reads folder after folder; the files of each go before its subfolders. */
async function filesBelow(entries: readonly FileSystemEntry[]): Promise<Chosen[]> {
  const found: Chosen[] = [];
  const waiting = [...entries];
  let seen = waiting.length;
  for (let entry = waiting.shift(); entry !== undefined; entry = waiting.shift()) {
    if (isFolder(entry)) {
      const content = await entriesOf(entry, entriesMax - seen);
      seen += content.length;
      waiting.push(...content);
    } else if (isFile(entry)) found.push({ file: await fileOf(entry), path: entry.fullPath.replace(/^\/+/, "") });
    if (found.length > filesMax) throw tooMany();
  }
  return found;
}

/** A reader gives some of the entries at a time, and none at the end. */
async function entriesOf(folder: FileSystemDirectoryEntry, max: number): Promise<FileSystemEntry[]> {
  const reader = folder.createReader();
  const all: FileSystemEntry[] = [];
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return all;
    all.push(...some);
    if (all.length > max) throw tooMany();
  }
}

function fileOf(entry: FileSystemFileEntry): Promise<File> {
  return new Promise((resolve, reject) => entry.file(resolve, reject));
}

function isFolder(entry: FileSystemEntry): entry is FileSystemDirectoryEntry {
  return entry.isDirectory;
}

function isFile(entry: FileSystemEntry): entry is FileSystemFileEntry {
  return entry.isFile;
}
