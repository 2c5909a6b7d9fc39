/** Whether bytes are text, and which. */

/** Undefined when the bytes are no UTF-8 text. A character that is cut off at the end does no harm. */
export function textOf(bytes: Uint8Array): string | undefined {
  if (bytes.includes(0)) return undefined;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: true });
  } catch {
    return undefined;
  }
}
