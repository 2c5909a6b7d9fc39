/**
 * Trees of this machine as a tar for files/extract. A library would take names as text, and names are bytes here. Owner of
 * everything is root, as of all files that the service writes.
 */
import { open } from "node:fs/promises";
import { onDisk } from "./names.ts";

export interface TarEntry {
  /** In the archive, in the text form of names. */
  name: string;
  kind: "file" | "directory" | "symlink";
  mode: number;
  mtimeMs: number;
  /** A file's path here. */
  from?: string;
  /** A link's target. */
  target?: string;
}

const blockBytes = 512;
/** Read of a file at once, and sent at once of small files. */
const pieceBytes = 256 * 1024;
const nameBytes = 100;
const kinds = { file: "0", directory: "5", symlink: "2" } as const;

/** `onFile` is called before a file is read, `onBytes` with the bytes of its content. */
export async function* tarOf(
  entries: Iterable<TarEntry>,
  { onFile, onBytes }: { onFile(entry: TarEntry): void; onBytes(count: number): void },
): AsyncGenerator<Uint8Array> {
  let gathered: Buffer[] = [];
  let size = 0;
  const add = (bytes: Buffer) => {
    gathered.push(bytes);
    size += bytes.length;
  };
  const take = () => {
    const whole = Buffer.concat(gathered, size);
    gathered = [];
    size = 0;
    return whole;
  };
  for (const entry of entries) {
    if (entry.kind === "file") {
      onFile(entry);
      for await (const bytes of fileMember(entry, onBytes)) {
        add(bytes);
        if (size >= pieceBytes) yield take();
      }
    } else add(headersOf(entry, 0));
    if (size >= pieceBytes) yield take();
  }
  add(Buffer.alloc(2 * blockBytes));
  yield take();
}

/** A file has the size that it had when it was opened: what is missing of it then is zeros. */
async function* fileMember(entry: TarEntry, onBytes: (count: number) => void): AsyncGenerator<Buffer> {
  const file = await open(onDisk(entry.from!));
  try {
    const { size } = await file.stat();
    yield headersOf(entry, size);
    for (let at = 0; at < size; ) {
      const wanted = Math.min(pieceBytes, size - at);
      const piece = Buffer.alloc(wanted);
      const { bytesRead } = await file.read(piece, 0, wanted, at);
      // Zeros stand for the rest of a file that has become shorter.
      const length = bytesRead === 0 ? wanted : bytesRead;
      yield piece.subarray(0, length);
      onBytes(length);
      at += length;
    }
    yield Buffer.alloc(-size & (blockBytes - 1));
  } finally {
    await file.close();
  }
}

function headersOf({ name, kind, mode, mtimeMs, target = "" }: TarEntry, size: number): Buffer {
  const [path, link] = [onDisk(name), onDisk(target)];
  const long = [
    ...(path.length > nameBytes ? [longName("L", path)] : []),
    ...(link.length > nameBytes ? [longName("K", link)] : []),
  ];
  return Buffer.concat([...long, header({ path, link, kind: kinds[kind], mode, mtimeMs, size })]);
}

/** GNU's way: the name as the content of a member before. */
function longName(kind: "L" | "K", name: Buffer): Buffer {
  const content = Buffer.concat([name, Buffer.alloc(1)]);
  const none = Buffer.alloc(0);
  const before = header({
    path: Buffer.from("././@LongLink"),
    link: none,
    kind,
    mode: 0,
    mtimeMs: 0,
    size: content.length,
  });
  return Buffer.concat([before, content, Buffer.alloc(-content.length & (blockBytes - 1))]);
}

interface Fields extends Pick<TarEntry, "mode" | "mtimeMs"> {
  path: Buffer;
  link: Buffer;
  kind: string;
  size: number;
}

function header({ path, link, kind, mode, mtimeMs, size }: Fields): Buffer {
  const block = Buffer.alloc(blockBytes);
  path.copy(block, 0, 0, nameBytes);
  block.write(octal(mode, 7), 100);
  block.write(octal(0, 7), 108);
  block.write(octal(0, 7), 116);
  if (size < 8 ** 11) block.write(octal(size, 11), 124);
  else {
    block[124] = 0x80;
    block.writeBigUInt64BE(BigInt(size), 128);
  }
  block.write(octal(Math.min(8 ** 11 - 1, Math.max(0, Math.floor(mtimeMs / 1_000))), 11), 136);
  block.write(kind, 156);
  link.copy(block, 157, 0, nameBytes);
  block.write("ustar\x0000", 257, "latin1");
  block.fill(" ", 148, 156);
  block.write(
    `${octal(
      block.reduce((sum, byte) => sum + byte, 0),
      6,
    )}\0 `,
    148,
    "latin1",
  );
  return block;
}

function octal(value: number, digits: number): string {
  return value.toString(8).padStart(digits, "0");
}
