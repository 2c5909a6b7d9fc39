/** The row of a new capsule. */
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
}

/** `labels`: as the row has them. A template brings its own storage and shape. */
export function newRow(
  resolved: Pick<Capsule, "id" | "teamId" | "storage" | "vcpus" | "memoryMb" | "diskMb">,
  { name, labels, template, timeoutSec, ...policies }: Omit<CreateRequest, "labels" | "diskMb"> & { labels: string },
  now: number,
): Capsule {
  return {
    ...resolved,
    ...{ name: name ?? null, labels, template, timeoutSec },
    ...policiesOf(policies),
    ...{ status: "starting", intent: "create", revision: 1 },
    ...{ createdAt: now, lastUpdated: now, startedAt: null, lastActiveAt: null, expiresAt: null },
    ...{ blockedBy: null, errorReason: null },
  };
}
