/** A machine as it stands in manifest.json and capsule.json, and whether a VM that was saved on it can be restored here. */
import { missingFeatures } from "../../vmm/machine/cpu-features.ts";
import type { Machine } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { type Fields, isCount, isObject, isText } from "./fields.ts";

/** Rates that are measured anew differ by a few millionths. A larger difference makes a restored guest's clock drift. */
const maxRateDifference = 250e-6;

/** The devices of format 1, by its number of the line-up. */
const formerDevices = new Map<unknown, readonly string[]>([[1, ["ports:1"]]]);

export function encodeMachine(machine: Machine): Record<string, unknown> {
  const { vcpus, memoryMb, accelerator, cpu, qemu, qemuBuild, cpuFeatures, tscKhz, devices } = machine;
  return {
    ...{ vcpus, memory_mb: memoryMb, accelerator, cpu, qemu },
    ...{ qemu_build: qemuBuild ?? null, cpu_features: cpuFeatures ?? null, tsc_khz: tscKhz ?? null, devices },
  };
}

/** Reads either format. Throws an Error that names the field. */
export function decodeMachine(value: unknown, format: number): Machine {
  if (!isObject(value)) throw new Error("it has no machine");
  return format === 1 ? fromFormat1(value) : fromFormat2(value);
}

function fromFormat1({ qemu, accelerator, cpu, cpuFeatures, layout, vcpus, memoryMb }: Fields): Machine {
  const devices = formerDevices.get(layout);
  if (devices === undefined) throw new Error(`its machine's layout is ${String(layout)}`);
  return checked({ qemu, accelerator, cpu, cpuFeatures, devices, vcpus, memoryMb });
}

function fromFormat2(fields: Fields): Machine {
  const { qemu, qemu_build, accelerator, cpu, cpu_features, tsc_khz, devices, vcpus, memory_mb } = fields;
  return checked({
    ...{ qemu, accelerator, cpu, devices, vcpus, memoryMb: memory_mb },
    ...{ qemuBuild: qemu_build ?? undefined, cpuFeatures: cpu_features ?? undefined, tscKhz: tsc_khz ?? undefined },
  });
}

function checked(fields: Record<keyof Machine, unknown> | Fields): Machine {
  const { qemu, qemuBuild, accelerator, cpu, cpuFeatures, tscKhz, devices, vcpus, memoryMb } = fields;
  const problems = {
    qemu: isText(qemu),
    qemu_build: qemuBuild === undefined || isText(qemuBuild),
    accelerator: accelerator === "kvm" || accelerator === "tcg",
    cpu: isText(cpu),
    cpu_features: cpuFeatures === undefined || isText(cpuFeatures),
    tsc_khz: tscKhz === undefined || isCount(tscKhz),
    devices: Array.isArray(devices) && devices.every(isText),
    vcpus: isCount(vcpus),
    memory_mb: isCount(memoryMb),
  };
  const wrong = Object.entries(problems).find(([, isRight]) => !isRight);
  if (wrong !== undefined) throw new Error(`its machine's ${wrong[0]} is missing or no ${wrong[0]}`);
  const known = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(known) as unknown as Machine;
}

/** Whether guests that know the one rate keep the time on a machine of the other. An unknown rate, of format 1, passes. */
export function isSameRate(saved: number | undefined, now: number | undefined): boolean {
  return saved === undefined || now === undefined || Math.abs(saved - now) <= maxRateDifference * saved;
}

/**
 * Throws CapsuleError("conflict") when a VM saved on `saved` cannot be restored on `now`. QEMU's build is not compared: when the
 * saving one is lost, another one of the same version restores.
 */
export function requireSameMachine(saved: Machine, now: Machine, what: string): void {
  const differing = differencesOf(saved, now);
  if (differing.length === 0) return;
  throw new CapsuleError("conflict", `${what} was saved on another machine: ${differing.join("; ")}`);
}

/** Whether `saved` is what this release makes now: its processes and saves serve both. */
export function isSameMachine(saved: Machine, now: Machine): boolean {
  return saved.qemuBuild === now.qemuBuild && differencesOf(saved, now).length === 0;
}

function differencesOf(saved: Machine, now: Machine): string[] {
  const differing: string[] = [];
  const compare = (name: string, there: unknown, here: unknown) => {
    if (there !== here) differing.push(`${name} ${String(there)} there, ${String(here)} here`);
  };
  for (const key of ["qemu", "accelerator", "cpu", "vcpus", "memoryMb"] as const) compare(key, saved[key], now[key]);
  compare("devices", saved.devices.join(" "), now.devices.join(" "));
  if (!isSameRate(saved.tscKhz, now.tscKhz)) compare("time stamp counter", `${saved.tscKhz} kHz`, `${now.tscKhz} kHz`);
  const lacking = saved.cpuFeatures === undefined ? [] : missingFeatures(saved.cpuFeatures, now.cpuFeatures ?? "");
  if (differing.length === 0 && lacking.length > 0) {
    differing.push(`this machine's processor lacks ${lacking.join(", ")}`);
  }
  return differing;
}
