/** Names of requests: 128 random bits in hexadecimal digits, fetched for many at a time. */
import { randomBytes } from "node:crypto";

const idBytes = 16;
const atOnce = 256;

export function requestIds(): () => string {
  let digits = "";
  let at = 0;
  return () => {
    if (at === digits.length) {
      digits = randomBytes(idBytes * atOnce).toString("hex");
      at = 0;
    }
    at += 2 * idBytes;
    return digits.slice(at - 2 * idBytes, at);
  };
}
