/**
 * Where capsules are, for requests that come to another host than the capsule's own. A host alone has no `Holders`: its requests are
 * answered here, and none of this room is loaded.
 */

import type { ReleasedCapsule } from "../http/released.ts";

/** Where a capsule is, as far as this host can tell. */
export type Holder =
  | { at: "here" }
  /** Another host of that name holds it. */
  | { at: "host"; host: string }
  /** No host holds it. */
  | { at: "released"; capsule: ReleasedCapsule }
  /** This host brings it back. */
  | { at: "coming" }
  /** The team has no such capsule. */
  | { at: "nowhere" }
  /** The database is away, or the host has expired: 503 "unavailable". */
  | { at: "unavailable"; host?: string };

export interface Holders {
  /**
   * `key`: id or name, as in the URL. Runs at most one statement, and none where the map has the capsule. Never rejects. `team`
   * undefined: `key` is an id, whose capsule may be any team's; a port's URL and a signed one name no team.
   */
  find(team: string | undefined, key: string): Promise<Holder>;
  /** Whether `find` needs no statement. */
  knows(team: string | undefined, key: string): boolean;
  /** The host that was asked does not hold it: the next `find` asks the database. */
  forget(team: string | undefined, key: string): void;
  /** As `Places.leaving`. */
  leaving?(team: string | undefined, key: string): Promise<unknown> | undefined;
  /** As `Places.comingRow`. */
  comingRow?(team: string, key: string): Promise<ReleasedCapsule | undefined>;
  /** As `Places.left`. */
  left?(team: string, key: string, host: string): Promise<ReleasedCapsule | "elsewhere" | "nowhere">;
  /** Whether the host is being stopped or started by its own word: it is up, and its peer port is closed. */
  isAbsent(host: string): boolean;
  /** Names of the other hosts that can be asked. */
  peers(): string[];
  /** The address of a host's peer port; undefined: the host is unknown or has expired. `orExpired`: it may have. */
  peer(host: string, orExpired?: boolean): { host: string; address: string; port: number } | undefined;
}
