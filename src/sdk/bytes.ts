/** Conversions between bytes and text that work in every JavaScript runtime. */

export type Bytes = Uint8Array<ArrayBuffer>;

/** Methods that older runtimes lack. */
type NativeBase64 = { fromBase64?: (text: string) => Bytes; prototype: { toBase64?: (this: Uint8Array) => string } };
const native = Uint8Array as unknown as NativeBase64;
const alphabet = utf8("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/");
const padding = 0x3d;

export function fromBase64(text: string): Bytes {
  if (native.fromBase64 !== undefined) return native.fromBase64.call(Uint8Array, text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** Without `btoa`, whose string of one character for each byte takes 17 times as long to make as all of this. */
export function toBase64(bytes: Uint8Array): string {
  if (native.prototype.toBase64 !== undefined) return native.prototype.toBase64.call(bytes);
  const { length } = bytes;
  const chars = new Uint8Array(Math.ceil(length / 3) * 4);
  for (let from = 0, to = 0; from < length; from += 3, to += 4) {
    const three = ((bytes[from] as number) << 16) | ((bytes[from + 1] ?? 0) << 8) | (bytes[from + 2] ?? 0);
    chars[to] = alphabet[three >> 18] as number;
    chars[to + 1] = alphabet[(three >> 12) & 63] as number;
    chars[to + 2] = alphabet[(three >> 6) & 63] as number;
    chars[to + 3] = alphabet[three & 63] as number;
  }
  if (length % 3 !== 0) chars[chars.length - 1] = padding;
  if (length % 3 === 1) chars[chars.length - 2] = padding;
  return utf8Text(chars);
}

export function utf8(text: string): Bytes {
  return new TextEncoder().encode(text) as Bytes;
}

export function utf8Text(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}

export function concatenated(chunks: readonly Uint8Array[]): Bytes {
  const whole = new Uint8Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    whole.set(chunk, at);
    at += chunk.length;
  }
  return whole;
}
