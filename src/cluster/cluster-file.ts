/**
 * The file that CAPSULE_CLUSTER names: the way to the database, and the secrets of the cluster. It is the same on every host, of mode
 * 0600, and its values stand in no environment and on no command line.
 */
import { randomBytes } from "node:crypto";
import {
  closeSync,
  fchmodSync,
  fstatSync,
  fsyncSync,
  linkSync,
  openSync,
  readFileSync,
  rmSync,
  writeSync,
} from "node:fs";
import { dirname } from "node:path";

export interface ClusterFile {
  /** The cluster's id, which its database has too. */
  cluster: string;
  /** A URL of PostgreSQL. */
  postgres: string;
  /** The secret of the connections between hosts; 32 bytes. */
  secret: Buffer;
  /** Under which values of clients are stored, in place of the data folder's secret.key; 32 bytes. */
  valuesKey: Buffer;
}

const format = 1;
const keyBytes = 32;
const fields = ["format", "cluster", "postgres", "secret", "values_key"];
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
  return { cluster, postgres, secret: keyOf("secret"), valuesKey: keyOf("values_key") };
}

/** A new cluster's; `valuesKey` is that of the first host's data folder. */
export function newClusterFile(postgres: string, valuesKey: Buffer): ClusterFile {
  return { cluster: randomBytes(8).toString("hex"), postgres, secret: randomBytes(keyBytes), valuesKey };
}

/** The file must not exist yet. It is whole, and on disk when this returns. */
export function writeClusterFile(path: string, { cluster, postgres, secret, valuesKey }: ClusterFile): void {
  const part = `${path}.new`;
  rmSync(part, { force: true }); // of a command that was ended
  const file = openSync(part, "wx", 0o600);
  try {
    fchmodSync(file, 0o600);
    const values = { format, cluster, postgres, secret: secret.toString("hex"), values_key: valuesKey.toString("hex") };
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
