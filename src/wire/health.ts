/** The service's health, for probes and operators. */
import Type, { type Static } from "typebox";
import { capsuleStatuses } from "./capsule.ts";

const count = Type.Integer({ minimum: 0 });

export const Health = Type.Object(
  {
    ready: Type.Boolean(),
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
    blanks: Type.Object(
      { ready: count, target: count },
      { description: "The former name of warm_processes; goes with the next release.", deprecated: true },
    ),
  },
  { title: "Health" },
);
export type Health = Static<typeof Health>;
