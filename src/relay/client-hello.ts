/**
 * The name in a TLS ClientHello, from the first bytes of a connection. An odd message is refused, since another reader may see another
 * name in it: two names, two extensions of one kind, a length that does not fit, bytes after the message.
 *
 * https://www.rfc-editor.org/rfc/rfc8446#section-4.1.2
 */
import { domainOf } from "../network/destinations.ts";
import { type FirstName, firstBytesMax, odd } from "./first-name.ts";

/** The first byte of a TLS connection. */
export const handshakeType = 22;
const clientHelloType = 1;
const recordHeaderBytes = 5;
const messageHeaderBytes = 4;
/** Programs that cut a ClientHello into records make a few. */
const recordsMax = 64;
const serverNameType = 0;
const hostNameType = 0;

/** Fragments of a ClientHello may come in records of any length. */
export function readClientHello(bytes: Buffer): FirstName {
  const fragments: Buffer[] = [];
  let length = 0;
  for (let at = 0; fragments.length < recordsMax; ) {
    if (bytes.length < at + recordHeaderBytes) return needing(at + recordHeaderBytes);
    const recordBytes = bytes.readUInt16BE(at + 3);
    if (bytes[at] !== handshakeType || bytes[at + 1] !== 3 || bytes[at + 2]! > 4) return odd("no TLS handshake");
    if (recordBytes === 0) return odd("an empty TLS record");
    const end = at + recordHeaderBytes + recordBytes;
    if (end > firstBytesMax) return odd("a ClientHello that is too long");
    if (bytes.length < end) return { need: end };
    fragments.push(bytes.subarray(at + recordHeaderBytes, end));
    length += recordBytes;
    at = end;
    if (length < messageHeaderBytes) continue;
    const header = Buffer.concat(fragments, messageHeaderBytes);
    if (header[0] !== clientHelloType) return odd("no ClientHello");
    const messageBytes = messageHeaderBytes + header.readUIntBE(1, 3);
    if (messageBytes > firstBytesMax) return odd("a ClientHello that is too long");
    if (length > messageBytes) return odd("bytes after the ClientHello");
    if (length === messageBytes) return nameIn(new Fields(Buffer.concat(fragments).subarray(messageHeaderBytes)));
  }
  return odd("a ClientHello in too many records");
}

function needing(bytes: number): FirstName {
  return bytes > firstBytesMax ? odd("a ClientHello that is too long") : { need: bytes };
}

function nameIn(fields: Fields): FirstName {
  const version = fields.u16();
  fields.take(32);
  const session = fields.vector(1);
  const suites = fields.vector(2);
  const compressions = fields.vector(1);
  const extensions = fields.vector(2);
  if (fields.isBroken || !fields.isAtEnd || version >> 8 !== 3) return odd("a malformed ClientHello");
  if (session.length > 32 || suites.length < 2 || suites.length % 2 !== 0 || compressions.length === 0) {
    return odd("a malformed ClientHello");
  }
  return nameInExtensions(new Fields(extensions));
}

function nameInExtensions(fields: Fields): FirstName {
  const seen = new Set<number>();
  let names: Buffer | undefined;
  while (!fields.isAtEnd) {
    const type = fields.u16();
    const data = fields.vector(2);
    if (fields.isBroken) return odd("a malformed ClientHello");
    if (seen.has(type)) return odd("a ClientHello with two extensions of one kind");
    seen.add(type);
    if (type === serverNameType) names = data;
  }
  return names === undefined ? odd("a ClientHello without a server name") : nameInList(new Fields(names));
}

function nameInList(extension: Fields): FirstName {
  const list = new Fields(extension.vector(2));
  const type = list.u8();
  const name = list.vector(2);
  const isOne = !extension.isBroken && extension.isAtEnd && !list.isBroken && list.isAtEnd;
  if (!isOne || type !== hostNameType) return odd("an odd list of server names");
  const text = name.toString("latin1");
  const domain = /^[\x21-\x7e]+(?<!\.)$/.test(text) ? domainOf(text) : undefined;
  return domain === undefined ? odd("an odd server name") : { name: domain };
}

/** Reads past the end give zeros and mark the fields as broken. */
class Fields {
  readonly #bytes: Buffer;
  #at = 0;
  isBroken = false;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get isAtEnd(): boolean {
    return this.isBroken || this.#at === this.#bytes.length;
  }

  u8(): number {
    return this.take(1)[0] ?? 0;
  }

  u16(): number {
    const bytes = this.take(2);
    return bytes.length === 2 ? bytes.readUInt16BE() : 0;
  }

  /** Bytes after their length, which has one byte or two. */
  vector(lengthBytes: 1 | 2): Buffer {
    return this.take(lengthBytes === 1 ? this.u8() : this.u16());
  }

  take(count: number): Buffer {
    const at = this.#at;
    if (count > this.#bytes.length - at) this.isBroken = true;
    else this.#at += count;
    return this.#bytes.subarray(at, this.#at);
  }
}
