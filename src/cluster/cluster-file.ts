/**
 * The file that CAPSULE_CLUSTER names: the ways to the database and the bucket, and the secrets of the cluster. It is the same on every host, of mode
 * 0600, and its values stand in no environment and on no command line.
 */
import { randomBytes } from "node:crypto";
import {
  closeSync,
  fchmodSync,
  fstatSync,
  fsyncSync,
  linkSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  writeSync,
} from "node:fs";
import { dirname } from "node:path";
import { type BucketAccess, requireBucketUrl } from "../bucket/access.ts";

export interface ClusterFile {
  /** The cluster's id, which its database has too. */
  cluster: string;
  /** A URL of PostgreSQL. */
  postgres: string;
  /** The secret of the connections between hosts; 32 bytes. */
  secret: Buffer;
  /** Under which values of clients are stored, in place of the data folder's secret.key; 32 bytes. */
  valuesKey: Buffer;
  /** Undefined: capsules and templates stay where they are. */
  bucket: BucketAccess | undefined;
}

const format = 1;
const keyBytes = 32;
const fields = ["format", "cluster", "postgres", "secret", "values_key", "bucket"];
const sizeMax = 64 * 1024;

/** Throws an Error of one sentence that names the file and what to do. */
export function readClusterFile(path: string): ClusterFile {
  const text = readPrivate(path);
  const problem = (what: string) => new Error(`${path} ${what}: copy it from a host of the cluster again`);
  let parsed: Record<string, unknown>;
  try {
    parsed = JSON.parse(text) as Record<string, unknown>;
  } catch {
    throw problem("is no JSON");
  }
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) throw problem("is no JSON object");
  if (typeof parsed.format === "number" && parsed.format > format)
    throw new Error(`${path} has format ${parsed.format}, and this program reads up to ${format}: upgrade it`);
  const unknown = Object.keys(parsed).find((name) => !fields.includes(name));
  if (unknown !== undefined) throw problem(`has the unknown field ${JSON.stringify(unknown)}`);
  if (parsed.format !== format) throw problem("has no format");
  const { cluster, postgres } = parsed;
  if (typeof cluster !== "string" || !/^[0-9a-f]{16}$/.test(cluster)) throw problem("has no id of a cluster");
  if (typeof postgres !== "string") throw problem("has no URL of PostgreSQL");
  requireSafeUrl(postgres, path);
  const keyOf = (name: "secret" | "values_key") => {
    const key = parsed[name];
    if (typeof key !== "string" || !/^[0-9a-f]{64}$/.test(key)) throw problem(`has no ${name} of 64 hex digits`);
    return Buffer.from(key, "hex");
  };
  const bucket = parsed.bucket === undefined ? undefined : bucketOf(parsed.bucket, path, problem);
  return { cluster, postgres, secret: keyOf("secret"), valuesKey: keyOf("values_key"), bucket };
}

function bucketOf(value: unknown, path: string, problem: (what: string) => Error): BucketAccess {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw problem("has no object as its bucket");
  const { url, access_key_id, secret_access_key, sealing_key, sealing_key_number, ...more } = value as Record<
    string,
    unknown
  >;
  const [unknown] = Object.keys(more);
  if (unknown !== undefined) throw problem(`has the unknown field ${JSON.stringify(`bucket.${unknown}`)}`);
  if (typeof url !== "string") throw problem("has no URL of its bucket");
  requireBucketUrl(url, path);
  if (!isCredential(access_key_id)) throw problem("has no access_key_id of its bucket");
  if (!isCredential(secret_access_key)) throw problem("has no secret_access_key of its bucket");
  if (typeof sealing_key !== "string" || !/^[0-9a-f]{64}$/.test(sealing_key))
    throw problem("has no sealing_key of 64 hex digits");
  const number = sealing_key_number;
  if (typeof number !== "number" || !Number.isInteger(number) || number < 1 || number > 0xffff_ffff)
    throw problem("has no sealing_key_number");
  const sealing = { number, key: Buffer.from(sealing_key, "hex") };
  return { url, accessKeyId: access_key_id, secretAccessKey: secret_access_key, sealing };
}

/** A key's id or its secret, as it can stand in a header of HTTP. */
export function isCredential(value: unknown): value is string {
  return typeof value === "string" && /^[!-~]{1,512}$/.test(value);
}

/** A new cluster's, with keys of its own; `valuesKey` is that of the first host's data folder. */
export function newClusterFile(
  postgres: string,
  valuesKey: Buffer,
  bucket?: Omit<BucketAccess, "sealing"> | undefined,
): ClusterFile {
  const [cluster, secret] = [randomBytes(8).toString("hex"), randomBytes(keyBytes)];
  const sealing = { number: 1, key: randomBytes(keyBytes) };
  return { cluster, postgres, secret, valuesKey, bucket: bucket === undefined ? undefined : { ...bucket, sealing } };
}

/** Makes the folder of the file. Throws where no file can be written into it. */
export function prepareClusterFile(path: string): void {
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
  const { part, file } = openPart(path);
  closeSync(file);
  rmSync(part);
}

function openPart(path: string): { part: string; file: number } {
  const part = `${path}.new`;
  rmSync(part, { force: true }); // of a command that was ended
  return { part, file: openSync(part, "wx", 0o600) };
}

/** The file must not exist yet. It is whole, and on disk when this returns. */
export function writeClusterFile(path: string, { cluster, postgres, secret, valuesKey, bucket }: ClusterFile): void {
  const { part, file } = openPart(path);
  try {
    fchmodSync(file, 0o600);
    const keys = { secret: secret.toString("hex"), values_key: valuesKey.toString("hex") };
    const values = {
      format,
      cluster,
      postgres,
      ...keys,
      ...(bucket === undefined ? {} : { bucket: bucketFields(bucket) }),
    };
    writeSync(file, `${JSON.stringify(values, undefined, 2)}\n`);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
  linkSync(part, path); // which replaces no other file
  rmSync(part);
  const folder = openSync(dirname(path), "r");
  try {
    fsyncSync(folder);
  } finally {
    closeSync(folder);
  }
}

function bucketFields({ url, accessKeyId, secretAccessKey, sealing }: BucketAccess) {
  return {
    ...{ url, access_key_id: accessKeyId, secret_access_key: secretAccessKey },
    ...{ sealing_key: sealing.key.toString("hex"), sealing_key_number: sealing.number },
  };
}

/**
 * Throws where a password or the rows could be read on the way: beyond this machine the server's certificate must be verified. `where`
 * begins the sentence.
 */
export function requireSafeUrl(url: string, where: string): void {
  if (!URL.canParse(url) || !/^postgres(ql)?:\/\//.test(url))
    throw new Error(`${where} has no URL of PostgreSQL, such as postgres://user@host/database`);
  const { hostname, searchParams } = new URL(url);
  const host = searchParams.get("host") ?? hostname;
  if (host === "" || host.startsWith("/") || /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(host)) return;
  if (searchParams.get("sslmode") === "verify-full") return;
  throw new Error(
    `${where} has a URL of PostgreSQL without sslmode=verify-full: add it, since ${host} is another machine`,
  );
}

function readPrivate(path: string): string {
  let file: number;
  try {
    file = openSync(path, "r");
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new Error(
      `${path}, which CAPSULE_CLUSTER names, cannot be read (${code}): copy it from a host of the cluster`,
    );
  }
  try {
    const { mode, size } = fstatSync(file);
    if ((mode & 0o077) !== 0) throw new Error(`${path} can be read by others: chmod 600 ${path}`);
    if (size > sizeMax)
      throw new Error(`${path} is too large to be a cluster file: copy it from a host of the cluster again`);
    return readFileSync(file, "utf8");
  } finally {
    closeSync(file);
  }
}
