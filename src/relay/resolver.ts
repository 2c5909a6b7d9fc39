/** Questions to the host's resolvers: c-ares by node:dns, without the host's files and search domains. */
import { promises as dns } from "node:dns";
import { rangeOf } from "../network/destinations.ts";
import { dataOf, type RecordType, recordTypes } from "./dns-records.ts";
import type { ResourceRecord } from "./records.ts";

const tryMs = 5_000;
const tries = 2;
/** Several resolvers are each asked twice; the answer is not waited for longer. */
const answerMs = 15_000;

export interface AddressAnswer {
  address: number;
  ttlSec: number;
}

/** `none`: the name exists without such records. */
export type Resolved<T> = { found: T[] } | { failure: "no such name" | "none" | "failed" };

/** Asks one question, of whatever capsule. */
export interface Resolver {
  addresses(name: string): Promise<Resolved<AddressAnswer>>;
  /** Records of a type other than A. Their TTL is not told, so it is 0. */
  records(name: string, type: Exclude<RecordType, "A">): Promise<Resolved<ResourceRecord>>;
}

export class HostResolver implements Resolver {
  readonly #dns: dns.Resolver;

  /** `servers`: addresses, with `:port` or without. */
  constructor(servers: readonly string[], timeout = tryMs) {
    this.#dns = new dns.Resolver({ timeout, tries, maxTimeout: timeout });
    if (servers.length > 0) this.#dns.setServers(servers);
  }

  addresses(name: string): Promise<Resolved<AddressAnswer>> {
    return answered(async () => {
      const records = await this.#dns.resolve4(name, { ttl: true });
      return records.map(({ address, ttl }) => ({ address: rangeOf(address)!.first, ttlSec: Math.max(0, ttl) }));
    });
  }

  records(name: string, type: Exclude<RecordType, "A">): Promise<Resolved<ResourceRecord>> {
    return answered(async () => {
      const values: unknown = await this.#dns.resolve(name, type);
      const data = dataOf(type, Array.isArray(values) ? values : [values]);
      return data.map((each) => ({ type: recordTypes[type], ttlSec: 0, data: each }));
    });
  }
}

async function answered<T>(ask: () => Promise<T[]>): Promise<Resolved<T>> {
  const { promise, resolve } = Promise.withResolvers<Resolved<T>>();
  const timer = setTimeout(() => resolve({ failure: "failed" }), answerMs);
  ask().then(
    (found) => resolve(found.length === 0 ? { failure: "none" } : { found }),
    (error: NodeJS.ErrnoException) => resolve({ failure: failureOf(error.code) }),
  );
  const resolved = await promise;
  clearTimeout(timer);
  return resolved;
}

function failureOf(code: string | undefined): "no such name" | "none" | "failed" {
  if (code === "ENOTFOUND") return "no such name";
  return code === "ENODATA" ? "none" : "failed";
}
