/** Capsules on the wire. */
import Type, { type Static } from "typebox";
import { capsuleNamePattern, createDefaults, policyDefaults } from "./defaults.ts";
import type { Limits } from "./limits.ts";
import { Network, NetworkBody } from "./network.ts";
import { checkedByRoute, Environment, Nullable, Text, Timestamp } from "./schema.ts";

export const capsuleStatuses = ["pending", "starting", "running", "paused", "stopped", "error"] as const;
export type CapsuleStatus = (typeof capsuleStatuses)[number];

/** Effects of a deadline on a running capsule. */
export const deadlineActions = ["pause", "destroy"] as const;
export type DeadlineAction = (typeof deadlineActions)[number];

/** Requests of one capsule that wait for its resume, and how long each waits. */
export const resumeWaitersMax = 100;
export const resumeWaitMs = 60_000;

const Status = Type.Unsafe<CapsuleStatus>({ type: "string", enum: [...capsuleStatuses] });

/** Labels of a capsule. */
export const labelsMax = 32;
/** UTF-8. */
export const labelValueMaxBytes = 256;
export const labelKeyPattern = "^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$";

/** Names and values of a capsule's variables together, UTF-8. */
export const envsMaxBytes = 65_536;

const nameMeaning =
  "1 to 63 of a–z, 0–9 and - within, not beginning with cl-; unique in the team while the capsule exists.";
const labelsMeaning = `At most ${labelsMax}; keys of 1 to 63 of A–Z, a–z, 0–9, ., _, / and -, values of at most ${labelValueMaxBytes} bytes.`;

export const Capsule = Type.Object(
  {
    id: Type.String({ pattern: "^cl-", description: "Never reused." }),
    name: Nullable(Type.String({ description: "Stands for the id in paths; null: none." })),
    labels: Type.Record(Type.String(), Type.String(), { description: "The team's own notes, as key and value." }),
    status: Status,
    template: Type.String({ description: "Name of the template it was made from." }),
    vcpus: Type.Integer(),
    memory_mb: Type.Integer({ description: "MiB." }),
    disk_mb: Type.Integer({
      description: "Size of its disk, MiB; what is written counts against quotas, not the size.",
    }),
    timeout_sec: Type.Integer({ description: "Seconds without a command until on_timeout; 0: none." }),
    on_timeout: Action("What inactivity does."),
    lifetime_sec: Type.Integer({ description: "Longest time in running, in seconds; 0: any." }),
    expires_at: Nullable({ ...Timestamp, description: "When its lifetime ends; null: it does not run, or has none." }),
    on_expiry: Action("What the end of the lifetime does."),
    retention_sec: Type.Integer({
      description: "Seconds in paused, stopped or error after which it is destroyed; 0: never.",
    }),
    auto_resume: Type.Boolean({ description: "Whether requests that need it running resume it." }),
    network: Network,
    port_url: Type.String({ description: "The URL of each of its ports, with `{port}` in the port's place." }),
    created_at: Timestamp,
    last_updated: Type.String({ ...Timestamp, description: "Last change of status." }),
    started_at: Nullable({ ...Timestamp, description: "When it last reached running." }),
    last_active_at: Nullable({ ...Timestamp, description: "Last exec or ping." }),
    error_reason: Nullable(Type.String({ description: "Why it is in status error." })),
    host: Nullable(Type.String({ description: "Which host of a cluster holds it; null on a service of one host." })),
  },
  { title: "Capsule" },
);
export type Capsule = Static<typeof Capsule>;

export const CapsuleList = Type.Array(Capsule, { description: "Newest first." });

export function CreateCapsuleBody(limits: Limits) {
  return Type.Object({
    name: Type.Optional(Type.String({ pattern: capsuleNamePattern, description: nameMeaning })),
    labels: Type.Optional(
      Type.Record(Type.String({ pattern: labelKeyPattern }), Text(), {
        additionalProperties: false,
        description: labelsMeaning,
      }),
    ),
    envs: Type.Optional({
      ...Environment,
      description:
        `Variables of every command and terminal, at most ${envsMaxBytes} bytes together; a command's own go before them. They are kept ` +
        "encrypted and in no answer.",
    }),
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
    disk_mb: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: limits.disk_max_mb,
        description: "Size of the disk, MiB. Default: the template's; smaller is 400, larger is grown before it runs.",
      }),
    ),
    timeout_sec: Type.Optional(
      Type.Integer({ minimum: 0, maximum: limits.timeout_max_sec, default: limits.timeout_default_sec }),
    ),
    ...policies(limits, {
      ...policyDefaults,
      lifetime_sec: limits.lifetime_default_sec,
      retention_sec: limits.retention_default_sec,
    }),
    network: checkedByRoute(Type.Optional(NetworkBody(limits))),
  });
}

export function UpdateCapsuleBody(limits: Limits) {
  return Type.Object({
    name: Type.Optional(
      Nullable(Type.String({ pattern: capsuleNamePattern, description: `${nameMeaning} null takes it away.` })),
    ),
    labels: Type.Optional(
      Type.Record(Type.String({ pattern: labelKeyPattern }), Nullable(Text()), {
        additionalProperties: false,
        description: `Added to those that the capsule has; null removes one. ${labelsMeaning}`,
      }),
    ),
    timeout_sec: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: limits.timeout_max_sec,
        description: "Seconds without a command until on_timeout; 0: none.",
      }),
    ),
    ...policies(limits),
  });
}

function Action(description: string) {
  return Type.Unsafe<DeadlineAction>({ type: "string", enum: [...deadlineActions], description });
}

type PolicyDefaults = Partial<typeof policyDefaults & Record<"lifetime_sec" | "retention_sec", number>>;

/** The fields of a body that say what happens to the capsule by itself. */
function policies(limits: Limits, defaults: PolicyDefaults = {}) {
  const seconds = (maximum: number, field: "lifetime_sec" | "retention_sec", description: string) =>
    Type.Optional(Type.Integer({ minimum: 0, maximum, description, ...defaultOf(defaults[field]) }));
  const action = (field: "on_timeout" | "on_expiry", description: string) =>
    Type.Optional(Type.Unsafe<DeadlineAction>({ ...Action(description), ...defaultOf(defaults[field]) }));
  return {
    on_timeout: action("on_timeout", "What inactivity does."),
    lifetime_sec: seconds(
      limits.lifetime_max_sec,
      "lifetime_sec",
      "Longest time in running, in seconds, from now on for a running capsule; 0: any.",
    ),
    on_expiry: action("on_expiry", "What the end of the lifetime does."),
    retention_sec: seconds(
      limits.retention_max_sec,
      "retention_sec",
      "Seconds in paused, stopped or error after which it is destroyed; 0: never.",
    ),
    auto_resume: Type.Optional(
      Type.Boolean({
        description: "Whether requests that need it running resume it.",
        ...defaultOf(defaults.auto_resume),
      }),
    ),
  };
}

function defaultOf(value: unknown) {
  return value === undefined ? {} : { default: value };
}

/** Unless the operator allows less. */
export function waitDefaultSec(limits: Limits): number {
  return Math.min(30, limits.wait_max_sec);
}

/** Capsules of one page. */
export const listPageMax = 1_000;

export const ListCapsulesQuery = Type.Object({
  status: Type.Optional(Type.String({ description: "One or more statuses, separated by commas." })),
  label: Type.Optional(
    Type.Array(Type.String(), {
      maxItems: labelsMax,
      description: "KEY=VALUE, split at the first =; given several times, the capsule must have all of them.",
    }),
  ),
  template: Type.Optional(Type.String({ description: "The name of the template that it was made from." })),
  name: Type.Optional(Type.String()),
  limit: Type.Optional(
    Type.Integer({ minimum: 1, maximum: listPageMax, description: "Capsules of one answer. Default: all." }),
  ),
  cursor: Type.Optional(
    Type.String({ description: "X-Next-Cursor of the page before this one, under the same conditions." }),
  ),
});
export type ListCapsulesQuery = Static<typeof ListCapsulesQuery>;

export function CreateWaitQuery(limits: Limits) {
  const { timeout } = WaitQuery(limits).properties;
  const wait = Type.Unsafe<"running">({
    type: "string",
    enum: ["running"],
    description: "Hold the answer until it runs.",
  });
  return Type.Object({ wait: Type.Optional(wait), timeout });
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
