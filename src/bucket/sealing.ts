/**
 * The form of an object: format (1 byte), number of the sealing key (4), nonce (12), AES-256-GCM of the compressed contents with its tag
 * (16). Each object has a key of its own, derived from the sealing key and the object's name, so none can be put in another's place.
 */
import { hkdfSync, randomBytes, type webcrypto } from "node:crypto";
import { promisify } from "node:util";
import { constants, zstdCompress, zstdDecompress } from "node:zlib";
import { messageOf } from "../wire/errors.ts";
import { DamagedObject } from "./objects.ts";

export interface SealingKey {
  /** Stands in each object; a later key has a higher one. */
  number: number;
  /** 32 bytes. */
  key: Buffer;
}

const format = 1;
const numberBytes = 4;
const nonceBytes = 12;
const tagBytes = 16;
const headBytes = 1 + numberBytes + nonceBytes;
const compress = promisify(zstdCompress);
const decompress = promisify(zstdDecompress);
const level = { [constants.ZSTD_c_compressionLevel]: 1 };
/** A frame that asks for a window above 8 MiB is refused: the largest that is made here has 4. */
const window = { [constants.ZSTD_d_windowLogMax]: 23 };
const stepBytes = 1 << 20;

/** The most bytes that an object of so many has: contents that cannot be compressed become some longer. */
export function sealedMax(bytes: number): number {
  return headBytes + bytes + (bytes >> 8) + 1_024 + tagBytes;
}

/** `about`: what the reader has to know of the contents already; authenticated, and not stored. */
export async function seal(
  { number, key }: SealingKey,
  { name, about, plain }: { name: string; about: string; plain: Uint8Array<ArrayBuffer> },
): Promise<Buffer<ArrayBuffer>> {
  const packed = Buffer.from(await compress(plain, { params: level, chunkSize: stepBytes }));
  const head = Buffer.alloc(headBytes);
  head[0] = format;
  head.writeUInt32BE(number, 1);
  const nonce = randomBytes(nonceBytes);
  nonce.copy(head, 1 + numberBytes);
  const sealed = await crypto.subtle.encrypt(cipher(nonce, about), await keyOf(key, name, "encrypt"), packed);
  return Buffer.concat([head, new Uint8Array(sealed)]);
}

/** The contents, at most `maxBytes` long. Throws a DamagedObject. */
export async function open(
  { number, key }: SealingKey,
  { name, about, object, maxBytes }: { name: string; about: string; object: Buffer<ArrayBuffer>; maxBytes: number },
): Promise<Buffer> {
  const refuse = (why: string, cause?: unknown) => new DamagedObject(name, why, cause);
  if (object.length < headBytes + tagBytes) throw refuse(`it has ${object.length} bytes, which is too few`);
  if (object[0] !== format) throw refuse(`it has format ${object[0]}, and this program reads ${format}`);
  const sealedUnder = object.readUInt32BE(1);
  if (sealedUnder !== number)
    throw refuse(`it is sealed under key ${sealedUnder}, and the cluster's file has key ${number}`);
  const nonce = object.subarray(1 + numberBytes, headBytes);
  let packed: ArrayBuffer;
  try {
    packed = await crypto.subtle.decrypt(
      cipher(nonce, about),
      await keyOf(key, name, "decrypt"),
      object.subarray(headBytes),
    );
  } catch (cause) {
    throw refuse("it is not what was written there under this name and key", cause);
  }
  try {
    const options = { maxOutputLength: maxBytes + 1, params: window, chunkSize: Math.min(stepBytes, maxBytes + 1_024) };
    const plain = await decompress(packed, options);
    if (plain.length <= maxBytes) return plain;
  } catch (cause) {
    if ((cause as { code?: unknown }).code !== "ERR_BUFFER_TOO_LARGE")
      throw refuse(`it cannot be decompressed (${messageOf(cause)})`, cause);
  }
  throw refuse(`it decompresses to more than ${maxBytes} bytes`);
}

function cipher(iv: Buffer<ArrayBuffer>, about: string) {
  return { name: "AES-GCM", iv, additionalData: Buffer.from(about), tagLength: 8 * tagBytes };
}

async function keyOf(sealingKey: Buffer, name: string, use: "encrypt" | "decrypt"): Promise<webcrypto.CryptoKey> {
  const bytes = hkdfSync("sha256", sealingKey, "", `capsule object ${name}`, 32);
  return await crypto.subtle.importKey("raw", bytes, "AES-GCM", false, [use]);
}
