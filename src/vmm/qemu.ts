/**
 * The Vmm on QEMU's microvm: starts, restores, adopts and reaps. Operations on one running VM are in qemu-vm.ts.
 *
 * Every start takes the same steps: lay out the VM's folder, start QEMU in its jail, report the process to the caller, connect
 * over QMP, put the saved memory in place, load the devices. On any failure the process is ended and the folder is as before.
 * A warm process stops after connecting; the remaining steps are in warm/warm-qemu.ts.
 */
import { closeSync, constants, openSync } from "node:fs";
import { open } from "node:fs/promises";
import { CapsuleError } from "../wire/errors.ts";
import type { Jail, Jailed } from "./jail/jail.ts";
import type { Listener } from "./listener.ts";
import { areKnown, type Parts, parts as releasedParts } from "./machine/parts.ts";
import {
  canWarmTranslations,
  kernelOptions,
  type Launch,
  qemuArgs,
  socketsOf,
  stateFdOf,
} from "./machine/qemu-args.ts";
import type { QemuProgram } from "./machine/qemu-program.ts";
import { isRecent } from "./machine/qemu-version.ts";
import { loadMemory } from "./memory/memory-diff.ts";
import { killFirst } from "./oom-score.ts";
import { endByNonce, endOnAbort, endProcess, findBelow, findByNonce, isVm, spawnDetached } from "./process.ts";
import { memoryBytes, type Purpose, qemuProfile, sizeOfDisk } from "./qemu-profile.ts";
import { QemuVm } from "./qemu-vm.ts";
import { clearFolder, deviceStateName, layDeviceState, listenForVm } from "./vm-folder.ts";
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
} from "./vmm.ts";
import { vmSpecOf, WarmQemu } from "./warm/warm-qemu.ts";

export interface QemuOptions {
  program: QemuProgram;
  accelerator: Accelerator;
  /** Around every QEMU. Undefined: no jail. */
  jail?: Jail | undefined;
  /** Default: those of this release. */
  parts?: Parts | undefined;
}

export class Qemu implements Vmm {
  readonly #options: QemuOptions;
  readonly #parts: Parts;

  constructor(options: QemuOptions) {
    this.#options = options;
    this.#parts = options.parts ?? releasedParts;
  }

  get hasWarmProcesses(): boolean {
    return this.#options.jail?.mode === "full";
  }

  machine(vcpus: number, memoryMb: number): Machine {
    const { program, accelerator } = this.#options;
    const { version, build } = program;
    const { kind, cpu, cpuFeatures, tscKhz } = accelerator;
    const qemu = { qemu: version, ...(build === undefined ? {} : { qemuBuild: build }) };
    const processor = { cpu, ...(cpuFeatures === undefined ? {} : { cpuFeatures }) };
    const clock = tscKhz === null ? {} : { tscKhz };
    const devices = this.#parts.newest;
    return { ...qemu, accelerator: kind, ...processor, ...clock, devices, vcpus, memoryMb: bootableMemoryMb(memoryMb) };
  }

  /** The machine on which a VM saved on `saved` would be restored: with the parts of `saved`, if all of them are known. */
  closest({ vcpus, memoryMb, devices }: Machine): Machine {
    const machine = this.machine(vcpus, memoryMb);
    return areKnown(this.#parts, devices) ? { ...machine, devices } : machine;
  }

  get kernelOptions(): string {
    return kernelOptions(this.#options.accelerator.kind);
  }

  boot(spec: VmSpec, onSpawn: OnSpawn, signal?: AbortSignal): Promise<Vm> {
    return this.#start({ spec, purpose: "boot", state: null, onSpawn, signal }, async (vm) => vm);
  }

  restore(spec: VmSpec, saved: SavedVm, onSpawn: OnSpawn, signal?: AbortSignal): Promise<Vm> {
    return this.#start({ spec, purpose: "restore", state: saved.state, onSpawn, signal }, async (vm) => {
      // Devices read memory while they load, so memory comes first.
      if (saved.memory !== null) {
        await loadMemory(vm.process, spec.files.memory, memoryBytes(spec), saved.memory, saved.pieces);
      }
      const launch = { spec, tscKhz: null, isIncoming: true, parts: this.#parts };
      await vm.load(isRecent(spec.machine.qemu) ? `file:${deviceStateName}` : `fd:${stateFdOf(launch)}`);
      return vm;
    });
  }

  startWarm(spec: WarmSpec, onSpawn: OnSpawn, signal?: AbortSignal): Promise<WarmProcess> {
    const { handoverDir } = spec;
    const start: Start = { spec: vmSpecOf(spec), purpose: "warm", handoverDir, state: null, onSpawn, signal };
    return this.#start(start, (vm, jailed) => WarmQemu.connect(spec, vm, jailed));
  }

  async adopt(spec: VmSpec, process: VmProcess): Promise<Vm> {
    if (!(await isVm(process, spec.nonce))) {
      const why = `ended while no server ran, as by capsule down or a reboot: process ${process.pid} is not the VM.`;
      throw new CapsuleError("agent_error", `The VM of ${spec.name} ${why}`);
    }
    this.#options.jail?.adopt(process);
    killFirst(process.pid); // the release before did not
    return await QemuVm.adopt(spec, process);
  }

  async reap(nonce: string, process: VmProcess): Promise<void> {
    const isOurs = (await isVm(process, nonce)) || this.#options.jail?.holds(process);
    if (isOurs) await endProcess(process);
  }

  findBelow(folder: string): Promise<{ process: VmProcess; nonce: string }[]> {
    return findBelow(folder);
  }

  find(nonce: string): Promise<VmProcess[]> {
    return findByNonce(nonce);
  }

  async #start<T>(start: Start, prepare: (vm: QemuVm, jailed: Jailed) => Promise<T>): Promise<T> {
    const { spec, onSpawn, signal } = start;
    signal?.throwIfAborted();
    await clearFolder(spec.files.dir);
    let jailed: Jailed | undefined;
    let vm: QemuVm | undefined;
    try {
      jailed = await this.#spawn(start);
      onSpawn(jailed.process);
      using _ending = endOnAbort(jailed.process, signal);
      vm = await QemuVm.connect(spec, jailed.process);
      const prepared = await prepare(vm, jailed);
      signal?.throwIfAborted();
      return prepared;
    } catch (error) {
      if (vm !== undefined) await vm.kill();
      else await endByNonce(spec.nonce);
      await clearFolder(spec.files.dir);
      signal?.throwIfAborted();
      throw await startFailure(start, error, jailed);
    }
  }

  async #spawn({ spec, purpose, handoverDir, state: saved }: Start): Promise<Jailed> {
    const { program, accelerator, jail } = this.#options;
    const { dir } = spec.files;
    const placeholderDiskBytes = purpose === "warm" ? await sizeOfDisk(spec) : null;
    const warmsTranslations = purpose === "warm" && canWarmTranslations(spec.machine);
    const launch: Launch = {
      spec,
      parts: this.#parts,
      isIncoming: purpose !== "boot",
      tscKhz: accelerator.kind === "kvm" ? null : accelerator.tscKhz,
      placeholderDiskBytes,
      warmsTranslations,
    };
    await using state = await open(await layDeviceState(dir, saved), "r");
    const folder = openSync(dir, constants.O_RDONLY | constants.O_DIRECTORY);
    let sockets: Listener[] = [];
    try {
      sockets = await listenForVm(folder, socketsOf(launch));
      const inherited = sockets.map(({ fd }) => fd);
      if (!isRecent(spec.machine.qemu)) inherited.push(state.fd);
      const argv = [...program.command, ...qemuArgs(launch)];
      if (jail === undefined) return { ...spawnDetached(argv, dir, inherited), chownToJail: async () => {} };
      const profile = await qemuProfile(spec, program, purpose, handoverDir);
      return await jail.start(argv, profile, inherited);
    } finally {
      for (const socket of sockets) socket.close();
      closeSync(folder);
    }
  }
}

interface Start {
  spec: VmSpec;
  purpose: Purpose;
  /** For a warm process. */
  handoverDir?: string;
  /** Device state to load; null: none, or not yet. */
  state: string | null;
  onSpawn: OnSpawn;
  signal: AbortSignal | undefined;
}

/** The error that clients see; its innermost cause has QEMU's last output. A full disk is reported as it is. */
async function startFailure({ spec, purpose }: Start, error: unknown, jailed: Jailed | undefined): Promise<unknown> {
  const { code } = error as NodeJS.ErrnoException;
  if (code === "ENOSPC" || code === "EDQUOT") return error;
  if (error instanceof CapsuleError && error.code === "internal_error") return error; // a damaged file, which it names
  const said = (await jailed?.stderrTail()) ?? "";
  const what = purpose === "restore" ? "restored" : "started";
  return new CapsuleError("agent_error", `The VM of ${spec.name} could not be ${what}.`, {
    cause: said === "" ? error : new Error(`QEMU said: ${said.trim()} (${String(error)})`),
  });
}

/**
 * With exactly 2 GiB, QEMU's loader places the initrd over the firmware's tables at the end of memory, and the kernel never
 * starts. With one MiB less it places the initrd below them.
 */
function bootableMemoryMb(memoryMb: number): number {
  return memoryMb === 2_048 ? 2_047 : memoryMb;
}
