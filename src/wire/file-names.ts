/**
 * Names of files as text. A name is bytes, nearly always of UTF-8. Bytes that are none stand as the characters U+10F800
 * to U+10F8FF, one for each byte, and so do the bytes of these characters themselves: every name has exactly one text,
 * which leads back to it and to no other. Without imports, for SDK and command line.
 */

const standIns = /[\u{10f800}-\u{10f8ff}]/u;
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const encoder = new TextEncoder();

/** A guest chooses the bytes: the text is decoded once, since a call for each byte would block the server's event loop. */
export function nameFromBytes(bytes: Uint8Array): string {
  const text = new Uint8Array(4 * bytes.length);
  let end = 0;
  for (let at = 0; at < bytes.length; ) {
    const length = characterBytes(bytes, at);
    if (length === 0) {
      const byte = bytes[at++]!;
      text[end++] = 0xf4;
      text[end++] = 0x8f;
      text[end++] = 0xa0 | (byte >> 6);
      text[end++] = 0x80 | (byte & 0x3f);
    }
    for (let i = 0; i < length; i++) text[end++] = bytes[at++]!;
  }
  return decoder.decode(text.subarray(0, end));
}

/** The reverse. Any character may be written as its bytes. */
export function bytesOfName(name: string): Uint8Array {
  const bytes = encoder.encode(name);
  let end = 0;
  for (let at = 0; at < bytes.length; ) {
    if (isStandIn(bytes, at)) {
      bytes[end++] = ((bytes[at + 2]! & 0x03) << 6) | (bytes[at + 3]! & 0x3f);
      at += 4;
    } else bytes[end++] = bytes[at++]!;
  }
  return bytes.subarray(0, end);
}

/** Whether the text is another than UTF-8 of its bytes. */
export function hasStandIns(name: string): boolean {
  return standIns.test(name);
}

/** Length of the UTF-8 character at `at`; 0: there is none, or it is one of the stand-ins. */
function characterBytes(bytes: Uint8Array, at: number): number {
  const first = bytes[at]!;
  if (first < 0x80) return 1;
  const length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  const second = bytes[at + 1] ?? 0;
  // Overlong forms, surrogates and codes beyond the last one differ from others in their second byte.
  const min = first === 0xe0 ? 0xa0 : first === 0xf0 ? 0x90 : 0x80;
  const max = first === 0xed ? 0x9f : first === 0xf4 ? 0x8f : 0xbf;
  if (length === 0 || second < min || second > max) return 0;
  for (let i = 2; i < length; i++) if (((bytes[at + i] ?? 0) & 0xc0) !== 0x80) return 0;
  return isStandIn(bytes, at) ? 0 : length;
}

/** Whether the UTF-8 character at `at` is a stand-in. */
function isStandIn(bytes: Uint8Array, at: number): boolean {
  return bytes[at] === 0xf4 && bytes[at + 1] === 0x8f && (bytes[at + 2]! & 0xfc) === 0xa0;
}
