/** Capsules on the wire. */
import Type, { type Static } from "typebox";
import { createDefaults } from "./defaults.ts";
import type { Limits } from "./limits.ts";
import { Nullable, Text, Timestamp } from "./schema.ts";

export const capsuleStatuses = ["pending", "starting", "running", "paused", "stopped", "error"] as const;
export type CapsuleStatus = (typeof capsuleStatuses)[number];

const Status = Type.Unsafe<CapsuleStatus>({ type: "string", enum: [...capsuleStatuses] });

export const Capsule = Type.Object(
  {
    id: Type.String({ pattern: "^cl-", description: "Never reused." }),
    status: Status,
    template: Type.String({ description: "Name of the template it was made from." }),
    vcpus: Type.Integer(),
    memory_mb: Type.Integer({ description: "MiB." }),
    timeout_sec: Type.Integer({ description: "Seconds without a command until auto-pause; 0: none." }),
    created_at: Timestamp,
    last_updated: Type.String({ ...Timestamp, description: "Last change of status." }),
    started_at: Nullable({ ...Timestamp, description: "When it last reached running." }),
    last_active_at: Nullable({ ...Timestamp, description: "Last exec or ping." }),
    error_reason: Nullable(Type.String({ description: "Why it is in status error." })),
  },
  { title: "Capsule" },
);
export type Capsule = Static<typeof Capsule>;

export const CapsuleList = Type.Array(Capsule, { description: "Newest first." });

export function CreateCapsuleBody(limits: Limits) {
  return Type.Object({
    template: Type.Optional(Text({ maxLength: 10_000, default: createDefaults.template })),
    vcpus: Type.Optional(Type.Integer({ minimum: 1, maximum: limits.vcpus_max, default: createDefaults.vcpus })),
    memory_mb: Type.Optional(
      Type.Integer({
        minimum: limits.memory_min_mb,
        maximum: limits.memory_max_mb,
        default: createDefaults.memory_mb,
        description: "MiB. A snapshot template brings its own vcpus and memory_mb.",
      }),
    ),
    timeout_sec: Type.Optional(
      Type.Integer({ minimum: 0, maximum: limits.timeout_max_sec, default: createDefaults.timeout_sec }),
    ),
  });
}

/** Unless the operator allows less. */
export function waitDefaultSec(limits: Limits): number {
  return Math.min(30, limits.wait_max_sec);
}

export function WaitQuery(limits: Limits) {
  return Type.Object({
    wait: Type.Optional(
      Type.Unsafe<CapsuleStatus>({ ...Status, description: "Hold the answer until this status or a final one." }),
    ),
    timeout: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: limits.wait_max_sec,
        default: waitDefaultSec(limits),
        description: "Seconds to hold it.",
      }),
    ),
  });
}
