/**
 * The CPU features that a guest sees under `-cpu host`. They depend on the processor, its microcode, the kernel and QEMU. A
 * saved guest keeps using those it found at boot, so it can be restored only on a host that has all of them.
 */
import { CapsuleError } from "../../wire/errors.ts";
import { withEmptyMachine } from "./empty-machine.ts";
import type { QemuProgram } from "./qemu-program.ts";

/** Sorted and separated by spaces, with `vendor=` among them. */
export async function hostCpuFeatures(command: QemuProgram["command"]): Promise<string> {
  return withEmptyMachine(command, "kvm", async (qmp) => {
    const answer = await qmp.command("query-cpu-model-expansion", { type: "full", model: { name: "host" } });
    return featuresOf((answer as { model?: { props?: unknown } }).model?.props);
  });
}

export function featuresOf(properties: unknown): string {
  if (typeof properties !== "object" || properties === null) {
    throw new CapsuleError("internal_error", "QEMU did not report the features of this machine's processor");
  }
  const { vendor, ...rest } = properties as Record<string, unknown>;
  // QEMU lists many features in two spellings.
  const names = Object.entries(rest).flatMap(([name, value]) => (value === true ? [name.replaceAll("_", "-")] : []));
  return [`vendor=${String(vendor)}`, ...new Set(names)].sort().join(" ");
}

/** The features of `saved` that `now` lacks. */
export function missingFeatures(saved: string, now: string): string[] {
  const there = new Set(now.split(" "));
  return saved.split(" ").filter((name) => !there.has(name));
}
