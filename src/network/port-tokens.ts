/**
 * Tokens that open one port of one capsule until a time: the time, and an HMAC-SHA256 over capsule, port and time under a secret of
 * the capsule's row (docs/adr/0073-open-ports-by-tokens-under-a-secret-of-the-capsule.md).
 */
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";

const secretBytes = 32;
const tokenPattern = /^([1-9][0-9]{0,14})\.[A-Za-z0-9_-]{43}$/;

export function newPortSecret(): Buffer {
  return randomBytes(secretBytes);
}

/** `expiresAt`: epoch milliseconds, whole. The token has A–Z, a–z, 0–9, `.`, `_` and `-` only. */
export function signPortToken(
  secret: Buffer,
  { id, port, expiresAt }: { id: string; port: number; expiresAt: number },
): string {
  const signed = JSON.stringify(["port", id, port, expiresAt]);
  return `${expiresAt}.${createHmac("sha256", secret).update(signed).digest("base64url")}`;
}

/** Whether the text may be a token of some port. */
export function isPortToken(text: string): boolean {
  return tokenPattern.test(text);
}

/** When the token ends, in epoch milliseconds; undefined: it does not open this port, or no more. The whole text is compared, in constant time. */
export function checkPortToken(
  secret: Buffer,
  token: string,
  { id, port, now }: { id: string; port: number; now: number },
): number | undefined {
  const [, expiresText] = tokenPattern.exec(token) ?? [];
  if (expiresText === undefined) return undefined;
  const expiresAt = Number(expiresText);
  const isSigned = timingSafeEqual(Buffer.from(token), Buffer.from(signPortToken(secret, { id, port, expiresAt })));
  return isSigned && now < expiresAt ? expiresAt : undefined;
}
