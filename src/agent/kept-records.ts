/** The records of ATTACH_FROM and LOGS. */
import type { LogsRequest, OutputStart, Selector } from "./agent.ts";
import { guestLimits } from "./guest-limits.ts";
import { DataChannel, EventKind, expectKind, selectorRequest, Verb, whole } from "./protocol.ts";
import { ProtocolError, type RecordWriter } from "./records.ts";

export function attachFromRequest(selector: Selector, start: OutputStart): RecordWriter {
  const to = selectorRequest(Verb.ATTACH_FROM, selector);
  if (typeof start === "number") return to.u8(2).u64(BigInt(start));
  return to.u8(start === "start" ? 0 : 1).u64(0n);
}

/** A terminal with its last output; the rest is as CONNECT. */
export function screenRequest(tag: string): RecordWriter {
  return selectorRequest(Verb.ATTACH_FROM, { tag }).u8(3).u64(0n);
}

const everyLine = 2n ** 64n - 1n;
const logChannels = { both: DataChannel.MAIN, stdout: DataChannel.STDOUT, stderr: DataChannel.STDERR } as const;

export function logsRequest(selector: Selector, { stream, tail }: LogsRequest): RecordWriter {
  const lines = tail === undefined ? everyLine : BigInt(tail);
  return selectorRequest(Verb.LOGS, selector).u8(logChannels[stream]).u64(lines);
}

export function decodePositionEvent(payload: Buffer): { offset: number } {
  return whole(payload, (fields) => {
    expectKind(fields, EventKind.POSITION);
    return { offset: fields.u64() };
  });
}

export function decodeKeptEvent(payload: Buffer): { size: number; dropped: number } {
  return whole(payload, (fields) => {
    expectKind(fields, EventKind.KEPT);
    const [size, dropped] = [fields.u64(), fields.u64()];
    if (size > guestLimits.keptOutputBytes) throw new ProtocolError(`kept output of ${size} bytes`);
    return { size, dropped };
  });
}
