/** Random ids and names. */
import { randomBytes } from "node:crypto";

const alphabet = "0123456789abcdefghijklmnopqrstuvwxyz";
const idLength = 25;

/** `cl-` and 25 characters, 129 random bits. */
export function newCapsuleId(): string {
  let id = "cl-";
  while (id.length < idLength + 3) {
    for (const byte of randomBytes(32)) {
      // 252 = 7 × 36: higher bytes would make the first letters more likely.
      if (byte < 252 && id.length < idLength + 3) id += alphabet[byte % 36];
    }
  }
  return id;
}

/** A template's storage id: internal, and never reused. */
export function newStorageId(): string {
  return `t${randomBytes(12).toString("hex")}`;
}

export function newTemplateName(): string {
  return `template-${randomBytes(4).toString("hex")}`;
}
