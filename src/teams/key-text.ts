/** The text of a key: 192 random bits behind a prefix. */
import { hash, randomBytes } from "node:crypto";

const prefix = "capk_";
const randomLength = 24; // bytes
const length = prefix.length + 2 * randomLength;
/** Length of the stored prefix, which shows 16 of the random bits. */
const shownLength = prefix.length + 4;

export function newKeyText(): string {
  return prefix + randomBytes(randomLength).toString("hex");
}

/** Whether a hash of the text can be that of a key. */
export function hasKeyLength(text: string): boolean {
  return text.length === length;
}

/** Whether the text has the form of a key. */
export function isKey(text: string): boolean {
  return hasKeyLength(text) && text.startsWith(prefix);
}

/** Its beginning, by which its holder recognizes it. */
export function shownPart(key: string): string {
  return key.slice(0, shownLength);
}

/** SHA-256 in hexadecimal digits. */
export function hashOf(key: string): string {
  return hash("sha256", key, "hex");
}
