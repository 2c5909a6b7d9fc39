/** The network that limits of unknown clients count. */

/**
 * One IPv6 client owns 2^64 addresses, so an IPv6 address counts as its /64 network: the first four groups. A connection that was
 * reset before its request is looked at has no address any more; all of those count as one network, "".
 */
export function networkOf(address = ""): string {
  if (!address.includes(":") || address.includes(".")) return address;
  const [head = [], tail = []] = address.split("::").map((groups) => groups.split(":"));
  const zeros = Array<string>(Math.max(0, 8 - head.length - tail.length)).fill("0"); // in the place of ::
  return [...head, ...zeros, ...tail].slice(0, 4).join(":");
}
