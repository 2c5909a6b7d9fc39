/**
 * The file `hashes` of a checkpoint: SHA-256 of each 4 MiB of its large files. That of a paused capsule is written some
 * seconds after the pause was answered; until then a resume is not checked. It leaves out the capsule's disk layer, which a
 * resume would have to read whole (docs/adr/0023). Older files have an entry for it, which nothing compares.
 */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { type Hashing, hashPieces, pieceBytes } from "../../vmm/memory/piece-hashes.ts";
import type { Pieces } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { isObject, isSha256, isSize, requireFormat } from "./fields.ts";
import { isMissing, jsonText } from "./files.ts";
import { hashesName } from "./manifest.ts";

const hashesFormat = 1;

/** By the file's name. */
export type Hashes = Readonly<Record<string, Pieces>>;

/** Hashes files, given as path by name. */
export async function hashFiles(paths: Readonly<Record<string, string>>, hashing: Hashing): Promise<Hashes> {
  const files: Record<string, Pieces> = {};
  for (const [name, path] of Object.entries(paths)) files[name] = await hashPieces(path, hashing);
  return files;
}

export function encodeHashes(files: Hashes): string {
  return jsonText({ format: hashesFormat, piece_bytes: pieceBytes, files });
}

/** Undefined when they were not made yet. Throws CapsuleError("internal_error") when they are damaged. */
export async function readHashes(folder: string): Promise<Hashes | undefined> {
  try {
    return decodeHashes(JSON.parse(await readFile(join(folder, hashesName), "utf8")));
  } catch (cause) {
    if (isMissing(cause)) return undefined;
    const name = folder.split("/").slice(-2).join("/");
    throw new CapsuleError("internal_error", `the hashes of the checkpoint ${name} are damaged`, { cause });
  }
}

function decodeHashes(value: unknown): Hashes {
  if (!isObject(value) || value.piece_bytes !== pieceBytes || !isObject(value.files)) throw new Error("no hashes");
  requireFormat(value.format, hashesFormat);
  const files: Record<string, Pieces> = {};
  for (const [name, pieces] of Object.entries(value.files)) {
    if (!isObject(pieces) || !isSize(pieces.bytes) || !Array.isArray(pieces.sha256)) throw new Error(`no ${name}`);
    const { bytes, sha256 } = pieces;
    const isRight = sha256.length === Math.ceil(bytes / pieceBytes) && sha256.every(isSha256);
    if (!isRight) throw new Error(`the hashes of ${name} do not fit its size`);
    files[name] = { bytes, sha256 };
  }
  return files;
}
