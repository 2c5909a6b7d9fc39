/** The proxies in front of the service, by their addresses: the headers of no other peer are believed. */
import { BlockList, isIP } from "node:net";

/** A comparison is linear in them, and each request makes some. */
const entriesMax = 16;
const loopback = ["127.0.0.0/8", "::1"];

export class Proxies {
  readonly #list = new BlockList();
  readonly #isEmpty: boolean;

  /** Each is `address` or `address/bits`. */
  constructor(entries: readonly string[]) {
    this.#isEmpty = entries.length === 0;
    for (const entry of entries) {
      const [address = "", bits = maxBits(address)] = entry.split("/");
      this.#list.addSubnet(address, Number(bits), familyOf(address));
    }
  }

  /** For Fastify's `trustProxy`. */
  get trust(): false | ((address: string) => boolean) {
    return this.#isEmpty ? false : (address) => this.has(address);
  }

  /** An IPv4 address may be written as one of IPv6, `::ffff:192.0.2.1`. A text that is no address is none of a proxy. */
  has(address = ""): boolean {
    return !this.#isEmpty && isIP(address) !== 0 && this.#list.check(address, familyOf(address));
  }
}

export const noProxies = new Proxies([]);

/** `no`, or by comma `loopback`, addresses and networks. Throws an Error whose message completes "CAPSULE_TRUST_PROXY …". */
export function parseProxies(text: string): Proxies {
  if (text === "no") return noProxies;
  const entries = text.split(",").map((each) => each.trim());
  const bad = entries.find((each) => each !== "loopback" && !isNetwork(each));
  if (bad !== undefined)
    throw new Error(
      "must be no, or loopback, addresses and networks such as 10.0.0.0/24, by comma; " +
        `${JSON.stringify(bad)} is none of them`,
    );
  if (entries.length > entriesMax) throw new Error(`must have at most ${entriesMax} addresses and networks`);
  return new Proxies(entries.flatMap((each) => (each === "loopback" ? loopback : [each])));
}

/** A network of no bit, /0, is refused: each client would say itself which address it has. */
function isNetwork(text: string): boolean {
  const [address = "", bits = maxBits(address), ...more] = text.split("/");
  const isAddress = isIP(address) !== 0 && !address.includes("%");
  return isAddress && /^[1-9]\d{0,2}$/.test(bits) && Number(bits) <= Number(maxBits(address)) && more.length === 0;
}

function maxBits(address: string): string {
  return familyOf(address) === "ipv4" ? "32" : "128";
}

function familyOf(address: string): "ipv4" | "ipv6" {
  return isIP(address) === 4 ? "ipv4" : "ipv6";
}
