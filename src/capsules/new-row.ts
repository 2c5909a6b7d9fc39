/** The row of a new capsule. */
import type { InjectValue } from "../network/inject.ts";
import type { NetworkPolicy } from "../network/policy.ts";
import type { Variables } from "./envs.ts";
import { type Labels, type PolicyChange, policiesOf } from "./settings.ts";
import type { Capsule } from "./store.ts";

export interface CreateRequest extends PolicyChange {
  /** Default: none. */
  name?: string | undefined;
  labels?: Labels | undefined;
  /** Variables of every command and terminal. Default: none. */
  envs?: Variables | undefined;
  template: string;
  vcpus: number;
  memoryMb: number;
  /** Default: the template's. */
  diskMb?: number | undefined;
  timeoutSec: number;
  /** Default: none. */
  network?: NetworkPolicy | undefined;
  /** The values of the network's headers, each of which is given. */
  injected?: readonly InjectValue[] | undefined;
}

interface Encoded extends Omit<CreateRequest, "labels" | "network" | "diskMb">, Pick<Capsule, "labels" | "network"> {}

/** `labels` and `network`: as the row has them. A template brings its own storage and shape. */
export function newRow(
  resolved: Pick<Capsule, "id" | "teamId" | "storage" | "vcpus" | "memoryMb" | "diskMb">,
  { name, template, timeoutSec, labels, network, ...policies }: Encoded,
  now: number,
): Capsule {
  return {
    ...resolved,
    ...{ name: name ?? null, labels, template, timeoutSec, network },
    ...policiesOf(policies),
    ...{ status: "starting", intent: "create", revision: 1 },
    ...{ createdAt: now, lastUpdated: now, startedAt: null, lastActiveAt: null, expiresAt: null },
    ...{ blockedBy: null, errorReason: null },
  };
}
