/**
 * Writes cpio archives in the "newc" format, which the kernel requires for an initial file system. The bytes depend on
 * the entries only: the cpio program would add inode numbers, owners and times of the building machine.
 *
 *   header (110 bytes of ASCII hex) · name NUL · pad to 4 · content · pad to 4 … TRAILER!!!
 */

export type CpioEntry =
  | { kind: "directory"; path: string; mode: number }
  | { kind: "file"; path: string; mode: number; content: Uint8Array }
  | { kind: "character_device"; path: string; mode: number; major: number; minor: number };

const typeBits = { directory: 0o040000, file: 0o100000, character_device: 0o020000 };
const maxSizeBytes = 0xffff_ffff;

/** Entries in the given order; a directory must precede its content. Paths have no leading slash. */
export function cpioArchive(entries: CpioEntry[]): Buffer {
  const seen = new Set<string>();
  const records = entries.map((entry, index) => {
    check(entry, seen);
    const content = entry.kind === "file" ? entry.content : new Uint8Array();
    const device = entry.kind === "character_device" ? entry : { major: 0, minor: 0 };
    const links = entry.kind === "directory" ? 2 : 1;
    return record(index + 1, entry.path, typeBits[entry.kind] | entry.mode, links, device, content);
  });
  return Buffer.concat([...records, record(0, "TRAILER!!!", 0, 1, { major: 0, minor: 0 }, new Uint8Array())]);
}

function check(entry: CpioEntry, seen: Set<string>): void {
  const { path } = entry;
  const names = path.split("/");
  if (names.some((name) => name === "" || name === "." || name === "..") || path.includes("\0")) {
    throw new Error(`cpio: not a relative path: ${JSON.stringify(path)}`);
  }
  const parent = names.slice(0, -1).join("/");
  if (parent !== "" && !seen.has(parent)) throw new Error(`cpio: ${path} precedes its directory`);
  if (seen.has(path)) throw new Error(`cpio: ${path} occurs twice`);
  if ((entry.mode & ~0o7777) !== 0) throw new Error(`cpio: ${path} has mode ${entry.mode.toString(8)}`);
  if (entry.kind === "file" && entry.content.length > maxSizeBytes)
    throw new Error(`cpio: ${path} is larger than 4 GiB`);
  seen.add(path);
}

function record(
  inode: number,
  path: string,
  mode: number,
  links: number,
  device: { major: number; minor: number },
  content: Uint8Array,
): Buffer {
  const name = Buffer.from(`${path}\0`);
  const numbers = [
    inode,
    mode,
    0, // uid
    0, // gid
    links,
    0, // mtime
    content.length,
    0, // device that holds the file: major, minor
    0,
    device.major,
    device.minor,
    name.length,
    0, // checksum, unused in newc
  ];
  const header = Buffer.from(`070701${numbers.map((number) => number.toString(16).padStart(8, "0")).join("")}`);
  return Buffer.concat([padded(Buffer.concat([header, name])), padded(content)]);
}

function padded(bytes: Uint8Array): Buffer {
  return Buffer.concat([bytes, Buffer.alloc(-bytes.length & 3)]);
}
