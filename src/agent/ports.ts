/** PORTS: the sockets of the guest on which servers listen. */
import { isIP } from "node:net";
import type { Channel } from "./channel.ts";
import { printable } from "./failure.ts";
import { Listing } from "./listing.ts";
import type { GuestPort } from "./network-verbs.ts";
import { request, Verb } from "./protocol.ts";
import { ProtocolError, type RecordReader } from "./records.ts";

export const portsListedMax = 1_000;
const bounds = { items: portsListedMax, bytes: 512 * 1024 };
/** The longest IPv6 address, as text. */
const addressMaxBytes = 45;
const cmdMaxBytes = 256;

/** One item; no end mark. */
export function readPort(fields: RecordReader): GuestPort {
  const port = fields.u16();
  const address = shortText(fields, addressMaxBytes);
  const pid = fields.u32();
  const cmd = shortText(fields, cmdMaxBytes);
  if (port === 0 || isIP(address) === 0) throw new ProtocolError("a port that cannot be");
  return { port, address, pid: pid === 0 ? undefined : pid, cmd: printable(cmd) };
}

/** The length is checked before the text is decoded. */
function shortText(fields: RecordReader, maxBytes: number): string {
  const bytes = fields.bytes();
  if (bytes.length > maxBytes) throw new ProtocolError(`a name of ${bytes.length} bytes`);
  return bytes.toString();
}

export async function listPorts(channel: Channel, signal?: AbortSignal): Promise<GuestPort[]> {
  const ports: GuestPort[] = [];
  const sink = { item: (port: GuestPort) => void ports.push(port), reserve: () => {} };
  await Listing.of(channel, Verb.PORTS, request(Verb.PORTS), { readItem: readPort, bounds, sink }, signal);
  return ports;
}
