/** The name that a connection's first bytes ask for, as TLS or HTTP/1 has it. */

/** Bytes that are read before a decision. */
export const firstBytesMax = 16_384;

export type FirstName =
  /** Lower case, without a trailing dot; `port` where a Host says one. */
  | { name: string; port?: number }
  /** Undecided with fewer bytes than this. */
  | { need: number }
  /** No name that every reader would see. */
  | { odd: string };

export function odd(what: string): FirstName {
  return { odd: what };
}
