/** A guest that has powered itself off, or reset itself, while its agent was waited for. */
import type { VmEnd } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";

export type HaltKind = Extract<VmEnd["kind"], "powered_off" | "reset">;

export class Halted extends CapsuleError {
  readonly kind: HaltKind;

  constructor(kind: HaltKind) {
    super("agent_error", `the VM has ended: ${kind}`);
    this.kind = kind;
  }
}

export function isHalt(kind: VmEnd["kind"]): kind is HaltKind {
  return kind === "powered_off" || kind === "reset";
}
