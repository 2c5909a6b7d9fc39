/** Conversions between bytes and text that work in every JavaScript runtime. */

export type Bytes = Uint8Array<ArrayBuffer>;

type NativeBase64 = { fromBase64?: (text: string) => Bytes };
const native = (Uint8Array as unknown as NativeBase64).fromBase64;
const charsPerCall = 0x8000;

export function fromBase64(text: string): Bytes {
  if (native !== undefined) return native.call(Uint8Array, text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export function toBase64(bytes: Uint8Array): string {
  let binary = "";
  for (let at = 0; at < bytes.length; at += charsPerCall) {
    binary += String.fromCharCode(...bytes.subarray(at, at + charsPerCall));
  }
  return btoa(binary);
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
