/** The networks that limits of unknown clients count. */

/**
 * One IPv6 client owns 2^64 addresses, so an IPv6 address counts as its /64 network: the first four groups. A connection that was
 * reset before its request is looked at has no address any more; all of those count as one network, "".
 */
export function networkOf(address = ""): string {
  return isIpv6(address) ? groupsOf(address).slice(0, 4).join(":") : address;
}

export interface Network {
  name: string;
  /** Its bounds are so many times those of one address. */
  times: number;
}

/** How many times the bounds of one address hold for a /56 or /24, and for a /48 or /16. */
export const largerNetworks = { small: 2, large: 4 };

/**
 * The larger networks around an address, which one site or provider may own: /56 and /48 of IPv6, /24 and /16 of IPv4. One
 * IPv6 site has up to 65,536 /64 networks.
 */
export function networksAround(address: string): Network[] {
  const { small, large } = largerNetworks;
  if (isIpv6(address)) {
    const [first = "", second = "", third = "", fourth = "0"] = groupsOf(address);
    const site = `${first}:${second}:${third}`;
    return [
      { name: `${site}:${Number.parseInt(fourth, 16) >> 8}/56`, times: small },
      { name: `${site}/48`, times: large },
    ];
  }
  const bytes = address.split(".");
  return [
    { name: `${bytes.slice(0, 3).join(".")}/24`, times: small },
    { name: `${bytes.slice(0, 2).join(".")}/16`, times: large },
  ];
}

/**
 * The address's network and the larger ones that have rates. Networks of IPv4 addresses have none: they belong to many clients, and
 * one would lock out its neighbours.
 */
export function ratedNetworks(address = ""): Network[] {
  const larger = isIpv6(address) ? networksAround(address) : [];
  return [{ name: networkOf(address), times: 1 }, ...larger];
}

/**
 * The networks whose clients take turns, the largest first: /32, /48, /56 and /64 of IPv6, /16, /24 and the address of IPv4. In each,
 * the next smaller ones take turns too. A turn refuses nobody, so neighbours may share one.
 */
export function nestedNetworks(address = ""): string[] {
  const [own, around] = [networkOf(address), networksAround(address).map(({ name }) => name)];
  const provider = isIpv6(address) ? [`${groupsOf(address).slice(0, 2).join(":")}/32`] : [];
  return [...provider, ...around.reverse(), own];
}

/** An IPv4 address may be written as one of IPv6, `::ffff:192.0.2.1`. */
function isIpv6(address: string): boolean {
  return address.includes(":") && !address.includes(".");
}

function groupsOf(address: string): string[] {
  const [head = [], tail = []] = address.split("::").map((groups) => groups.split(":").filter((group) => group !== ""));
  const zeros = Array<string>(Math.max(0, 8 - head.length - tail.length)).fill("0"); // in the place of ::
  return [...head, ...zeros, ...tail];
}
