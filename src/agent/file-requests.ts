/** Requests of the file verbs with more than a path, encoded; docs/AGENT-PROTOCOL.md has the records. */
import type { ArchiveRequest, ByteRange, FileAttributes, FileMove, FileOwners } from "./agent.ts";
import { EventKind, request, Verb } from "./protocol.ts";
import { RecordWriter } from "./records.ts";

export function moveRequest({ from, to, overwrite }: FileMove): RecordWriter {
  return request(Verb.MOVE)
    .path(from)
    .path(to)
    .u8(overwrite ? 1 : 0);
}

export function chmodRequest(path: string, mode: number, recursive: boolean): RecordWriter {
  return request(Verb.CHMOD)
    .path(path)
    .u32(mode)
    .u8(recursive ? 1 : 0);
}

export function chownRequest(path: string, { owner, group }: FileOwners, recursive: boolean): RecordWriter {
  return request(Verb.CHOWN)
    .path(path)
    .optionalStr(owner)
    .optionalStr(group)
    .u8(recursive ? 1 : 0);
}

const lastPosition = 0xffff_ffff_ffff_ffffn;

export function rangeRequest(path: string, range: ByteRange): RecordWriter {
  const to = request(Verb.READ_RANGE).path(path);
  if ("suffix" in range) return to.u8(1).u64(BigInt(range.suffix)).u64(0n);
  const last = range.last === undefined ? lastPosition : BigInt(range.last);
  return to.u8(0).u64(BigInt(range.first)).u64(last);
}

export function attributesEvent({ parents = false, mode, owner }: FileAttributes): Buffer {
  const to = new RecordWriter().u16(EventKind.ATTRIBUTES).u8(parents ? 1 : 0);
  return (mode === undefined ? to.u8(0) : to.u8(1).u32(mode)).optionalStr(owner).finish();
}

export function targetEvent(path: string): Buffer {
  return new RecordWriter().u16(EventKind.TARGET).path(path).finish();
}

export function archiveRequest({ paths, base }: ArchiveRequest): RecordWriter {
  return request(Verb.ARCHIVE).paths(paths).optionalPath(base);
}
