/**
 * Names of files as text. A name is bytes, nearly always of UTF-8. Bytes that are none stand as the characters U+10F800
 * to U+10F8FF, one for each byte, and so do the bytes of these characters themselves: every name has exactly one text,
 * which leads back to it and to no other. Without imports, for SDK and command line.
 */

const firstCode = 0x10_f800;
const lastCode = 0x10_f8ff;
const standIns = /[\u{10f800}-\u{10f8ff}]/u;
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const encoder = new TextEncoder();

export function nameFromBytes(bytes: Uint8Array): string {
  let text = "";
  let plainFrom = 0;
  for (let at = 0; at < bytes.length; ) {
    const length = characterBytes(bytes, at);
    if (length === 0) {
      text += decoder.decode(bytes.subarray(plainFrom, at)) + String.fromCodePoint(firstCode + bytes[at]!);
      plainFrom = at + 1;
    }
    at += Math.max(length, 1);
  }
  return text + decoder.decode(bytes.subarray(plainFrom));
}

/** The reverse. Any character may be written as its bytes. */
export function bytesOfName(name: string): Uint8Array {
  if (!hasStandIns(name)) return encoder.encode(name);
  const bytes: number[] = [];
  for (const character of name) {
    const code = character.codePointAt(0)!;
    if (code >= firstCode && code <= lastCode) bytes.push(code - firstCode);
    else bytes.push(...encoder.encode(character));
  }
  return Uint8Array.from(bytes);
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
  const isStandIn = first === 0xf4 && second === 0x8f && bytes[at + 2]! >= 0xa0 && bytes[at + 2]! <= 0xa3;
  return isStandIn ? 0 : length;
}
