/** A capsule's policy after the operator's rules. */
import { type Egress, egresses } from "../wire/network.ts";
import { destinationOf } from "./destinations.ts";
import { isOpen, type NetworkRules } from "./grants.ts";
import type { NetworkPolicy } from "./policy.ts";

export interface EffectivePolicy {
  egress: Egress;
  allow: string[];
  deny: string[];
}

/**
 * Without the operator's reserved ranges, which hold for all capsules. Entries of `allow` whose grant was taken back are left out.
 * `policy` undefined: it could not be read, and everything is denied.
 */
export function effectivePolicy(policy: NetworkPolicy | undefined, rules: NetworkRules): EffectivePolicy {
  if (policy === undefined) return { egress: "none", allow: [], deny: [] };
  const egress = egresses[Math.min(egresses.indexOf(policy.egress), egresses.indexOf(rules.ceiling))]!;
  const allow = egress === "none" ? [] : policy.allow.filter((entry) => holds(entry, rules));
  return { egress, allow, deny: policy.deny };
}

function holds(entry: string, rules: NetworkRules): boolean {
  const found = destinationOf(entry);
  return !("problem" in found) && isOpen(found, rules);
}
