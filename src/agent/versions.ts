/** The versions of docs/AGENT-PROTOCOL.md. */

export interface VersionRange {
  min: number;
  max: number;
}

/** The versions that this host speaks. */
export const protocolVersions: Readonly<VersionRange> = { min: 1, max: 1 };
/** The version of an agent whose checkpoint or journal has no record of it: only this one existed then. */
export const unrecordedProtocol = 1;

export function speaks({ min, max }: VersionRange, version: number): boolean {
  return version >= min && version <= max;
}

/** "protocol 3, this server 1 to 2", for the message of an agent that cannot be spoken to. */
export function describeMismatch(version: number, { min, max }: VersionRange): string {
  return `protocol ${version}, this server ${min === max ? min : `${min} to ${max}`}`;
}
