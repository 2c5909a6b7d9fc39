/** The network of a capsule on the wire. */

/** The destinations of a capsule: none, those that `allow` names, every public address. */
export const egresses = ["none", "allowlist", "public"] as const;
export type Egress = (typeof egresses)[number];
