/**
 * The virtual machine monitors of this machine: QEMU's installed build and those that are kept, each under emulation and, where
 * KVM works, under KVM. A new VM runs in the installed build under the chosen accelerator. A saved one is restored by the build
 * and the accelerator that saved it.
 */
import { emulation } from "../../vmm/accelerator.ts";
import type { Jail } from "../../vmm/jail/jail.ts";
import { hostCpuFeatures } from "../../vmm/machine/cpu-features.ts";
import type { Parts } from "../../vmm/machine/parts.ts";
import type { QemuProgram } from "../../vmm/machine/qemu-program.ts";
import { Qemu } from "../../vmm/qemu.ts";
import type {
  Accelerator,
  Machine,
  OnSpawn,
  SavedVm,
  Vm,
  Vmm,
  VmProcess,
  VmSpec,
  WarmProcess,
  WarmSpec,
} from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { Paths } from "../disk/paths.ts";
import { type References, readReferences } from "../disk/references.ts";
import type { QemuBuilds } from "./qemu-builds.ts";

/** A Vmm that picks QEMU's build and the accelerator by each VM's machine. */
export interface Vmms extends Vmm {
  /** Resolves when `machine` describes the QEMU that is installed now. `onReplaced` is called before if it is another one. */
  refresh(): Promise<void>;
  onReplaced(listener: () => void): void;
  /** The machine on which a VM saved on `saved` would be restored here. Another one, if this host has no such machine. */
  closest(saved: Machine): Promise<Machine>;
  /** See QemuBuilds.requireKept. */
  requireKept(machine: Machine, what: string): Promise<void>;
  /** See QemuBuilds.take. */
  take(build: string): Promise<void>;
  /** Removes the builds of QEMU that none of these machines, and no new VM, needs. Resolves with their hashes. */
  trim(saved: readonly Machine[]): Promise<string[]>;
  /** Whether VMs of this machine's accelerator can be restored here. */
  accelerates(saved: Pick<Machine, "accelerator">): boolean;
}

export interface QemuVmmsOptions {
  builds: Pick<QemuBuilds, "current" | "find" | "findSound" | "refresh" | "requireKept" | "take" | "trim">;
  /** The accelerator of new VMs. */
  accelerator: Accelerator;
  jail: Jail | undefined;
  /** Called once for a new build of QEMU that cannot be taken into use. */
  onProblem: (what: string, error: unknown) => void;
  /** Default: asks QEMU. */
  features?: typeof hostCpuFeatures;
  /** In ms. Default: `performance.now`. */
  now?: () => number;
  /** Default: those of this release. */
  parts?: Parts;
}

/** After a new build could not be taken into use. */
const retryMs = 30_000;

export class QemuVmms implements Vmms {
  readonly #options: QemuVmmsOptions;
  readonly #listeners: (() => void)[] = [];
  /** By command line and accelerator. */
  readonly #opened = new Map<string, Promise<Qemu>>();
  /** The program of new VMs. */
  #program: QemuProgram;
  #current: Qemu;
  /** A build that could not be taken into use. */
  #refused: { program: QemuProgram; atMs: number } | undefined;

  constructor(options: QemuVmmsOptions) {
    const { builds, accelerator, jail, parts } = options;
    this.#options = options;
    this.#program = builds.current;
    this.#current = new Qemu({ program: this.#program, accelerator, jail, parts });
    this.#opened.set(keyOf(this.#program, accelerator.kind), Promise.resolve(this.#current));
  }

  get hasWarmProcesses(): boolean {
    return this.#current.hasWarmProcesses;
  }

  get kernelOptions(): string {
    return this.#current.kernelOptions;
  }

  machine(vcpus: number, memoryMb: number): Machine {
    return this.#current.machine(vcpus, memoryMb);
  }

  onReplaced(listener: () => void): void {
    this.#listeners.push(listener);
  }

  /** As `QemuBuilds.refresh`, also where the new build's features cannot be read. */
  async refresh(): Promise<void> {
    const { builds } = this.#options;
    await builds.refresh();
    const program = builds.current;
    if (program === this.#program) return;
    const current = await this.#openNew(program);
    if (current === undefined || program === this.#program) return; // another call was faster
    this.#program = program;
    this.#current = current;
    for (const listener of this.#listeners) listener();
  }

  async closest(saved: Machine): Promise<Machine> {
    const program = (await this.#options.builds.findSound(saved)) ?? this.#program;
    const kind = this.accelerates(saved) ? saved.accelerator : this.#options.accelerator.kind;
    return (await this.#open(program, kind)).closest(saved);
  }

  accelerates({ accelerator }: Pick<Machine, "accelerator">): boolean {
    return accelerator === "tcg" || this.#options.accelerator.kind === "kvm";
  }

  requireKept(machine: Machine, what: string): Promise<void> {
    return this.#options.builds.requireKept(machine, what);
  }

  take(build: string): Promise<void> {
    return this.#options.builds.take(build);
  }

  trim(saved: readonly Machine[]): Promise<string[]> {
    return this.#options.builds.trim(saved);
  }

  async boot(spec: VmSpec, onSpawn: OnSpawn, signal?: AbortSignal): Promise<Vm> {
    return (await this.#for(spec)).boot(spec, onSpawn, signal);
  }

  async restore(spec: VmSpec, saved: SavedVm, onSpawn: OnSpawn, signal?: AbortSignal): Promise<Vm> {
    return (await this.#for(spec)).restore(spec, saved, onSpawn, signal);
  }

  async startWarm(spec: WarmSpec, onSpawn: OnSpawn, signal?: AbortSignal): Promise<WarmProcess> {
    return (await this.#for(spec)).startWarm(spec, onSpawn, signal);
  }

  adopt(spec: VmSpec, process: VmProcess): Promise<Vm> {
    return this.#current.adopt(spec, process);
  }

  reap(nonce: string, process: VmProcess): Promise<void> {
    return this.#current.reap(nonce, process);
  }

  find(nonce: string): Promise<VmProcess[]> {
    return this.#current.find(nonce);
  }

  findBelow(folder: string): Promise<{ process: VmProcess; nonce: string }[]> {
    return this.#current.findBelow(folder);
  }

  async #for({ machine, name }: Pick<VmSpec, "machine" | "name">): Promise<Qemu> {
    const { builds } = this.#options;
    if (builds.find(machine)?.build === undefined) await this.refresh(); // a program that is not a copy may have been replaced
    const program = await builds.findSound(machine);
    if (program !== undefined && this.accelerates(machine)) return this.#open(program, machine.accelerator);
    throw new CapsuleError("conflict", `${name} needs QEMU ${machine.qemu} with ${machine.accelerator}`);
  }

  /** Undefined when it cannot be used and the one in use stays. Throws when that one is no copy: it was overwritten. */
  async #openNew(program: QemuProgram): Promise<Qemu | undefined> {
    const { accelerator, onProblem, now = () => performance.now() } = this.#options;
    const isSafe = this.#program.build !== undefined;
    const isRefused = this.#refused?.program === program && now() - this.#refused.atMs < retryMs;
    if (isSafe && isRefused) return undefined;
    try {
      return await this.#open(program, accelerator.kind);
    } catch (error) {
      if (this.#refused?.program !== program) {
        onProblem("the installed QEMU was replaced, and the new one cannot be used", error);
      }
      this.#refused = { program, atMs: now() };
      if (!isSafe) throw error;
      return undefined;
    }
  }

  #open(program: QemuProgram, kind: Accelerator["kind"]): Promise<Qemu> {
    const key = keyOf(program, kind);
    let opened = this.#opened.get(key);
    if (opened === undefined) {
      opened = this.#make(program, kind);
      this.#opened.set(key, opened);
      opened.catch(() => this.#opened.delete(key));
    }
    return opened;
  }

  /** Under KVM the processor's features that a guest finds depend on QEMU's build. */
  async #make(program: QemuProgram, kind: Accelerator["kind"]): Promise<Qemu> {
    const { accelerator, jail, parts, features = hostCpuFeatures } = this.#options;
    if (kind !== accelerator.kind) {
      return new Qemu({ program, accelerator: emulation(accelerator.tscKhz, accelerator.why), jail, parts });
    }
    const own = accelerator.cpuFeatures === undefined ? {} : { cpuFeatures: await features(program.command) };
    return new Qemu({ program, accelerator: { ...accelerator, ...own }, jail, parts });
  }
}

/** Removes the builds of QEMU that nothing in the data folder needs. Call before the first start. */
export async function trimQemuBuilds({ machines, damaged }: References, vmms: Pick<Vmms, "trim">): Promise<string[]> {
  return damaged.length > 0 ? [] : vmms.trim(machines); // a damaged file may need any of them
}

/** A sentence for operators, when this host lacks the accelerator that most capsules and templates were saved under. */
export async function lackedAccelerator(paths: Paths, vmms: Pick<Vmms, "accelerates">): Promise<string | undefined> {
  const { machines } = await readReferences(paths, ["templates", "capsules"]);
  const count = machines.filter((machine) => !vmms.accelerates(machine)).length;
  return count * 2 <= machines.length ? undefined : `${count} of ${machines.length} capsules and templates need KVM`;
}

/** A program that is not a copy keeps its command line when it is replaced. */
function keyOf({ command, version }: QemuProgram, kind: Accelerator["kind"]): string {
  return [kind, version, ...command].join(" ");
}
