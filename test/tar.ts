/** Archives of tests, header by header, so that they can be wrong in any way. */

export interface Member {
  name: string | Buffer;
  kind?: string;
  mode?: number;
  uid?: number;
  gid?: number;
  mtime?: number;
  link?: string | Buffer;
  content?: string | Buffer;
  /** Instead of the content's length. */
  size?: number | Buffer;
  magic?: string;
  prefix?: string;
}

export const endMark = Buffer.alloc(1_024);

export function tar(...members: Member[]): Buffer {
  return Buffer.concat([...members.map(member), endMark]);
}

export function member(given: Member): Buffer {
  const content = Buffer.from(given.content ?? "");
  return Buffer.concat([header(given), content, Buffer.alloc(-content.length & 511)]);
}

export function header(given: Member): Buffer {
  const { name, kind = "0", mode = 0o644, uid = 0, gid = 0, mtime = 1_700_000_000, link = "", content = "" } = given;
  const { size = Buffer.from(content).length, magic = "ustar\x0000", prefix = "" } = given;
  const block = Buffer.alloc(512);
  const octal = (value: number, digits: number) => value.toString(8).padStart(digits, "0");
  Buffer.from(name).copy(block, 0, 0, 100);
  block.write(octal(mode, 7), 100);
  block.write(octal(uid, 7), 108);
  block.write(octal(gid, 7), 116);
  if (typeof size === "number") block.write(octal(size, 11), 124);
  else size.copy(block, 124);
  block.write(octal(mtime, 11), 136);
  block.write(kind, 156, "latin1");
  Buffer.from(link).copy(block, 157, 0, 100);
  block.write(magic, 257, "latin1");
  block.write(prefix, 345, 155);
  return checked(block);
}

/** With its checksum. */
export function checked(block: Buffer): Buffer {
  block.fill(" ", 148, 156);
  const sum = block.reduce((total, byte) => total + byte, 0);
  block.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148, "latin1");
  return block;
}

/** A header for the member after it. */
export function pax(records: Record<string, string | Buffer>, kind = "x"): Member {
  const content = Object.entries(records).map(([key, value]) => {
    const rest = Buffer.concat([Buffer.from(` ${key}=`), Buffer.from(value), Buffer.from("\n")]);
    let length = rest.length;
    while (length !== rest.length + `${length}`.length) length = rest.length + `${length}`.length;
    return Buffer.concat([Buffer.from(`${length}`), rest]);
  });
  return { name: "PaxHeader", kind, content: Buffer.concat(content) };
}
