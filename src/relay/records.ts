/** The records of docs/NETWORK-PROTOCOL.md that differ from the agent's: one pure function encodes or decodes each. */
import { nonceBytes, whole } from "../agent/protocol.ts";
import { ProtocolError, type RecordReader, RecordWriter } from "../agent/records.ts";

const magic = Buffer.from("capsule-net");
export const protocolVersion = 1;
const verbs = { CONNECT: 51, RESOLVE: 52 } as const;
/** Longest text of a gateway's name and version that is kept. */
const gatewayMaxLength = 100;
/** A name has at most 253 characters. */
const nameMaxBytes = 1_000;

export type Asked =
  | { kind: "connect"; address: number; port: number }
  | { kind: "resolve"; name: string; type: number };

export type ConnectFailure = "refused" | "denied" | "unreachable" | "timeout";

/** One record of an answer. The owner is the name asked for. */
export interface ResourceRecord {
  type: number;
  ttlSec: number;
  data: Uint8Array;
}

export interface Answer {
  rcode: number;
  records: ResourceRecord[];
}

export function helloRecord(nonce: Uint8Array): Buffer {
  return new RecordWriter().bytes(magic).raw(nonce).u16(protocolVersion).finish();
}

export interface GatewayWelcome {
  version: number;
  /** Name and version of the program. */
  gateway: string;
}

export function decodeGatewayWelcome(payload: Buffer, nonce: Uint8Array): GatewayWelcome {
  return whole(payload, (fields) => {
    if (!fields.raw(nonceBytes).equals(nonce)) throw new ProtocolError("a WELCOME for another HELLO");
    return { version: fields.u16(), gateway: fields.str().slice(0, gatewayMaxLength) };
  });
}

export function decodeOpen(payload: Buffer): Asked {
  return whole(payload, (fields) => {
    const verb = fields.u16();
    if (verb === verbs.CONNECT) return { kind: "connect", address: fields.u32(), port: portIn(fields) };
    if (verb !== verbs.RESOLVE) throw new ProtocolError(`an OPEN of verb ${verb}`);
    const name = fields.bytes();
    if (name.length > nameMaxBytes) throw new ProtocolError(`a name of ${name.length} bytes`);
    return { kind: "resolve", name: name.toString("latin1"), type: fields.u16() };
  });
}

function portIn(fields: RecordReader): number {
  const port = fields.u16();
  if (port === 0) throw new ProtocolError("port 0");
  return port;
}

export const openedEvent = new RecordWriter().u16(1).finish();

export function failRecord(code: ConnectFailure, message: string): Buffer {
  return new RecordWriter().str(code).str(message).finish();
}

export function answerRecord({ rcode, records }: Answer): Buffer {
  const to = new RecordWriter().u8(rcode).u32(records.length);
  for (const { type, ttlSec, data } of records) to.u16(type).u32(ttlSec).bytes(data);
  return to.finish();
}
