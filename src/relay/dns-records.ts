/** RDATA, the payload of DNS records, from what node:dns answers. Names are not compressed. */
import type { CaaRecord, MxRecord, SoaRecord, SrvRecord } from "node:dns";

export const recordTypes = {
  A: 1,
  NS: 2,
  CNAME: 5,
  SOA: 6,
  PTR: 12,
  MX: 15,
  TXT: 16,
  SRV: 33,
  CAA: 257,
} as const;

export type RecordType = keyof typeof recordTypes;

const nameMaxBytes = 255;
const labelMaxBytes = 63;
const textMaxBytes = 255;
const caaTags = ["issue", "issuewild", "iodef", "contactemail", "contactphone"] as const;

/** One RDATA for each; values that do not fit into one are left out. */
export function dataOf(type: RecordType, values: readonly unknown[]): Buffer[] {
  return values.map((value) => encoders[type](value)).filter((data) => data !== undefined);
}

const encoders: Record<RecordType, (value: unknown) => Buffer | undefined> = {
  A: (address) => Buffer.from((address as string).split(".").map(Number)),
  NS: (name) => nameData(name as string),
  CNAME: (name) => nameData(name as string),
  PTR: (name) => nameData(name as string),
  MX: (value) => {
    const { priority, exchange } = value as MxRecord;
    return joined([u16(priority), nameData(exchange)]);
  },
  SRV: (value) => {
    const { priority, weight, port, name } = value as SrvRecord;
    return joined([u16(priority), u16(weight), u16(port), nameData(name)]);
  },
  SOA: (value) => {
    const { nsname, hostmaster, serial, refresh, retry, expire, minttl } = value as SoaRecord;
    return joined([nameData(nsname), nameData(hostmaster), ...[serial, refresh, retry, expire, minttl].map(u32)]);
  },
  TXT: (value) => joined((value as string[]).map(textData)),
  CAA: (value) => {
    const record = value as CaaRecord;
    const tag = caaTags.find((each) => record[each] !== undefined);
    if (tag === undefined) return undefined;
    return joined([Buffer.from([record.critical & 255]), textData(tag), Buffer.from(record[tag]!, "latin1")]);
  },
};

/** Undefined: it is no name of at most 255 bytes. `\.` and `\123` stand for bytes in it. */
export function nameData(name: string): Buffer | undefined {
  const labels: number[][] = [[]];
  for (const [part] of (name === "." ? "" : name).matchAll(/\\\d{3}|\\.|[^\\]/gs)) {
    if (part === ".") labels.push([]);
    else labels.at(-1)!.push(part.length === 4 ? Number(part.slice(1)) : part.charCodeAt(part.length - 1));
  }
  if (labels.at(-1)!.length === 0) labels.pop(); // the empty name, or a dot at the end
  const isName = labels.every(
    (label) => label.length > 0 && label.length <= labelMaxBytes && label.every((byte) => byte <= 255),
  );
  const data = Buffer.from([...labels.flatMap((label) => [label.length, ...label]), 0]);
  return isName && data.length <= nameMaxBytes ? data : undefined;
}

function textData(text: string): Buffer | undefined {
  const bytes = Buffer.from(text, "latin1");
  return bytes.length > textMaxBytes ? undefined : Buffer.concat([Buffer.from([bytes.length]), bytes]);
}

function joined(parts: readonly (Buffer | undefined)[]): Buffer | undefined {
  return parts.every((part) => part !== undefined) ? Buffer.concat(parts) : undefined;
}

function u16(value: number): Buffer {
  return Buffer.from([(value >> 8) & 255, value & 255]);
}

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value >>> 0);
  return bytes;
}
