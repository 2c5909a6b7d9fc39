/** The part of the agent's interface that concerns servers in the guest. */
import type { Duplex } from "node:stream";

/** A TCP socket of the guest on which a server listens. */
export interface GuestPort {
  port: number;
  /** An IPv4 or IPv6 address of the guest; `0.0.0.0` and `::` are all. */
  address: string;
  /** Undefined: the process was not found. */
  pid?: number | undefined;
  /** The first word of its command line; empty where it was not found. */
  cmd: string;
}

export interface NetworkVerbs {
  /**
   * Connects to 127.0.0.1, ::1 or eth0's address in the guest, the first that accepts. The end of each direction is passed on alone. A
   * reset destroys the stream with CapsuleError("agent_error"), and destroying the stream resets the connection. Rejects with the
   * failure "not_found" where nothing listens. The stream may be destroyed already when the promise resolves.
   */
  dial(port: number, signal?: AbortSignal): Promise<Duplex>;
  /** By port and address, at most 1 000. */
  ports(signal?: AbortSignal): Promise<GuestPort[]>;
}
