/** The service's own state, for probes and people. */
import Type, { type Static } from "typebox";
import { capsuleStatuses } from "./capsule.ts";

const count = Type.Integer({ minimum: 0 });

export const Health = Type.Object(
  {
    ready: Type.Boolean(),
    version: Type.String(),
    accelerator: Type.String({ description: "kvm: hardware virtualization; tcg: software emulation, slower." }),
    accelerator_reason: Type.String({ description: "Why this accelerator." }),
    pid: Type.Integer(),
    capsules: Type.Record(Type.String(), count, {
      description: `Capsules by status: ${capsuleStatuses.join(", ")}.`,
    }),
    pool: Type.Object(
      { ready: count, target: count },
      { description: "Capsules made ahead of time: how many there are, and how many there should be now." },
    ),
  },
  { title: "Health" },
);
export type Health = Static<typeof Health>;
