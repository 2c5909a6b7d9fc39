/** The part of the cluster's file about a bucket: its URL, the key to it, and the key that its contents are sealed under. */
import type { SealingKey } from "./sealing.ts";

export interface BucketAccess {
  /** `https://HOST/BUCKET`, with a prefix of the names behind it if need be, and `?region=` where the bucket wants one. */
  url: string;
  accessKeyId: string;
  secretAccessKey: string;
  sealing: SealingKey;
}

/**
 * Throws where a key or an object's name could be read on the way: beyond this machine the server's certificate must be verified. `where`
 * begins the sentence.
 */
export function requireBucketUrl(url: string, where: string): void {
  const wrong = () => new Error(`${where} has no URL of a bucket, such as https://s3.example.org/bucket`);
  if (!URL.canParse(url)) throw wrong();
  const { protocol, hostname, pathname, username, password, hash, searchParams } = new URL(url);
  if (protocol !== "https:" && protocol !== "http:") throw wrong();
  if (username !== "" || password !== "")
    throw new Error(`${where} has a URL of a bucket with a key in it: leave it out, since the key is asked for`);
  const isPath = /^(\/[a-zA-Z0-9_][a-zA-Z0-9._-]*)+\/?$/.test(pathname);
  if (!isPath || hash !== "" || [...searchParams.keys()].some((name) => name !== "region")) throw wrong();
  if (!/^[a-z0-9-]{1,64}$/.test(searchParams.get("region") ?? "auto")) throw wrong();
  if (protocol === "https:" || /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(hostname)) return;
  throw new Error(`${where} has a URL of a bucket without https: use it, since ${hostname} is another machine`);
}
