/** Decoding of base64 in requests. Node's decoder skips characters that it does not know, so text is checked first. */

/** Undefined: not base64 with its padding. */
export function bytesOfBase64(text: string): Buffer | undefined {
  if (text.length % 4 !== 0 || !/^[A-Za-z0-9+/]*={0,2}$/.test(text)) return undefined;
  return Buffer.from(text, "base64");
}
