/**
 * The data folder's secret key, under which the server encrypts what clients entrust to it. The database without `secret.key`
 * shows nothing of that, and a lost key cannot be replaced.
 */
import { createCipheriv, createDecipheriv, createHmac, hkdfSync, randomBytes } from "node:crypto";
import { closeSync, fchmodSync, fsyncSync, openSync, readFileSync, renameSync, writeSync } from "node:fs";
import { dirname, join } from "node:path";

export const secretKeyName = "secret.key";

const keyBytes = 32;
const cipher = "aes-256-gcm";
const [nonceBytes, tagBytes] = [12, 16];

export class SecretKey {
  readonly #encryption: Buffer;
  readonly #authentication: Buffer;

  /** `key`: 32 random bytes. */
  constructor(key: Buffer) {
    const derived = (use: string) => Buffer.from(hkdfSync("sha256", key, "", use, keyBytes));
    this.#encryption = derived("encryption");
    this.#authentication = derived("authentication");
  }

  /** Reads the key of a data folder, or makes it. Throws when the file is no key. */
  static ofFolder(dataDir: string): SecretKey {
    const path = join(dataDir, secretKeyName);
    const text = readIfThere(path);
    if (text === undefined) {
      const key = randomBytes(keyBytes);
      writeDurably(path, `${key.toString("hex")}\n`);
      return new SecretKey(key);
    }
    if (!/^[0-9a-f]{64}\n?$/.test(text)) {
      throw new Error(
        `${path} is damaged: bring it back from a backup, or remove it; capsules with envs can then not be resumed, and requests with injected headers fail`,
      );
    }
    return new SecretKey(Buffer.from(text.trim(), "hex"));
  }

  /** The data folder has this key from now on, durably when this returns. */
  static keep(dataDir: string, key: Buffer): void {
    const [path, text] = [join(dataDir, secretKeyName), `${key.toString("hex")}\n`];
    if (readIfThere(path) !== text) writeDurably(path, text);
  }

  /** `place` names what the text belongs to: sealed for one place, it opens at no other. */
  seal(place: string, text: string): Uint8Array {
    const nonce = randomBytes(nonceBytes);
    const sealing = createCipheriv(cipher, this.#encryption, nonce).setAAD(Buffer.from(place));
    const sealed = Buffer.concat([sealing.update(text, "utf8"), sealing.final()]);
    return Buffer.concat([nonce, sealing.getAuthTag(), sealed]);
  }

  /** Undefined: it was sealed under another key or for another place, or was changed. */
  open(place: string, bytes: Uint8Array): string | undefined {
    const whole = Buffer.from(bytes);
    const [nonce, tag] = [whole.subarray(0, nonceBytes), whole.subarray(nonceBytes, nonceBytes + tagBytes)];
    if (tag.length < tagBytes) return undefined;
    const opening = createDecipheriv(cipher, this.#encryption, nonce).setAAD(Buffer.from(place)).setAuthTag(tag);
    try {
      return Buffer.concat([opening.update(whole.subarray(nonceBytes + tagBytes)), opening.final()]).toString("utf8");
    } catch {
      return undefined;
    }
  }

  /** A text's fingerprint, which nobody can guess the text by without the key. */
  fingerprint(text: string): string {
    return createHmac("sha256", this.#authentication).update(text).digest("base64url");
  }
}

function readIfThere(path: string): string | undefined {
  try {
    return readFileSync(path, "latin1");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

/** The file has mode 0600 and is on disk under its name when this returns. */
function writeDurably(path: string, text: string): void {
  const made = `${path}.new`;
  const file = openSync(made, "w", 0o600);
  try {
    fchmodSync(file, 0o600);
    writeSync(file, text);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
  renameSync(made, path);
  const folder = openSync(dirname(path), "r");
  try {
    fsyncSync(folder);
  } finally {
    closeSync(folder);
  }
}
