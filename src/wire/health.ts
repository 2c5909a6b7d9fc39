/** The service's health, for probes and operators. */
import Type, { type Static } from "typebox";
import { capsuleStatuses } from "./capsule.ts";

const count = Type.Integer({ minimum: 0 });

const readiness = {
  ready: Type.Boolean({ description: "Whether this machine can make a capsule; false is sent as 503." }),
  creates: Type.Boolean({ description: "Whether a create is admitted now; false where ready is." }),
  reasons: Type.Array(Type.String(), {
    description:
      "Why it can make no capsule: disk, memory, QEMU, jail, image, the cluster's database. A cluster's bucket that is away stands here too, and creates go on.",
  }),
};

export const ServiceState = Type.Object(
  {
    version: Type.String(),
    accelerator: Type.String({ description: "kvm: hardware virtualization; tcg: software emulation, slower." }),
    accelerator_reason: Type.String({ description: "Why this accelerator." }),
    jail: Type.Object(
      {
        mode: Type.String({ description: "full: a user of its own for each VM; rootless; off." }),
        cgroup: Type.String({ description: "v2: control groups bound each VM; none: only limits of its process do." }),
        missing: Type.Array(Type.String(), { description: "Missing parts of the jail, each with a remedy." }),
      },
      { description: "The jail of each VM's process." },
    ),
    pid: Type.Integer(),
    capsules: Type.Record(Type.String(), count, {
      description: `Capsules by status: ${capsuleStatuses.join(", ")}.`,
    }),
    pool: Type.Object(
      { ready: count, target: count },
      { description: "Capsules made ahead of time: how many there are, and how many there should be now." },
    ),
    warm_processes: Type.Object(
      { ready: count, target: count },
      { description: "VM processes started ahead of time, for resumes and creates past the pool." },
    ),
  },
  { title: "ServiceState" },
);
export type ServiceState = Static<typeof ServiceState>;

const network = Type.Object(
  {
    relay: Type.String({
      description:
        "up, or down: capsules reach nothing until it is back. The relay is the process that dials for them.",
    }),
    egress: Type.String({ description: "What a capsule reaches that asks for no network: public or none." }),
    port_domain: Type.String({ description: "The domain below which ports have their URLs." }),
  },
  { description: "The network of capsules." },
);

/** Clients without a key that are not on this machine are told `ready` only. */
export const Health = Type.Object(
  {
    ready: readiness.ready,
    creates: Type.Optional(readiness.creates),
    reasons: Type.Optional(readiness.reasons),
    ...Type.Partial(ServiceState).properties,
    network: Type.Optional(network),
  },
  { title: "Health", description: "With a key, and on this machine, all fields; otherwise ready alone." },
);
export type Health = Static<typeof Health>;

/** The body for clients with a key and those on this machine. */
export type FullHealth = ServiceState & {
  ready: boolean;
  creates: boolean;
  reasons: string[];
  network: Static<typeof network>;
};
