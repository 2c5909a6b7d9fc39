/**
 * The Vmm on QEMU's microvm: starts, restores, adopts and reaps. What one VM does once it is there stands in qemu-vm.ts.
 *
 * Every start follows one road: lay out the VM's folder, start QEMU in its jail, tell the caller which process it is, reach
 * it over QMP, put the saved memory in place, load the devices. Whatever fails on it, the process is ended and the folder
 * is as before. A blank stops half-way on that road (warm-qemu.ts has the other half).
 */
import { closeSync, constants, openSync } from "node:fs";
import { open } from "node:fs/promises";
import { CapsuleError } from "../wire/errors.ts";
import type { Jail, Jailed } from "./jail/jail.ts";
import type { ProgramFiles } from "./jail/program-files.ts";
import type { Listener } from "./listener.ts";
import { loadMemory } from "./memory/memory-diff.ts";
import { endProcess, findBelow, findByNonce, isVm, spawnDetached } from "./process.ts";
import { canWarmTranslations, inheritedFd, kernelOptions, layout, qemuArgs } from "./qemu-args.ts";
import { memoryBytes, type Purpose, qemuProfile, sizeOfDisk } from "./qemu-profile.ts";
import { isRecent } from "./qemu-version.ts";
import { QemuVm } from "./qemu-vm.ts";
import {
  agentSocketName,
  clearFolder,
  devicesName,
  layDevices,
  listenForVm,
  qmpSocketName,
  qtestSocketName,
} from "./vm-folder.ts";
import type { Accelerator, Machine, SavedVm, Vm, Vmm, VmProcess, VmSpec, WarmProcess } from "./vmm.ts";
import { WarmQemu } from "./warm/warm-qemu.ts";

export interface QemuOptions {
  /** The program, e.g. "qemu-system-x86_64". */
  program: string;
  /** Its version, as qemuVersion says. */
  version: string;
  accelerator: Accelerator;
  /** Around every QEMU, with what the program itself needs to see. Undefined: none. */
  jail?: { jail: Jail; view: ProgramFiles } | undefined;
}

export class Qemu implements Vmm {
  readonly #options: QemuOptions;

  constructor(options: QemuOptions) {
    this.#options = options;
  }

  get hasWarmProcesses(): boolean {
    return this.#options.jail?.jail.mode === "full";
  }

  machine(vcpus: number, memoryMb: number): Machine {
    const { version, accelerator } = this.#options;
    const { kind, cpu } = accelerator;
    return { qemu: version, accelerator: kind, cpu, layout, vcpus, memoryMb: bootableMemoryMb(memoryMb) };
  }

  get kernelOptions(): string {
    return kernelOptions(this.#options.accelerator.kind);
  }

  boot(spec: VmSpec, onSpawn: (process: VmProcess) => void): Promise<Vm> {
    return this.#start({ spec, purpose: "boot", state: null, onSpawn }, async (vm) => vm);
  }

  restore(spec: VmSpec, saved: SavedVm, onSpawn: (process: VmProcess) => void): Promise<Vm> {
    return this.#start({ spec, purpose: "restore", state: saved.state, onSpawn }, async (vm) => {
      // Devices look into memory while they load, so memory comes first.
      if (saved.memory !== null) await loadMemory(vm.process.pid, spec.files.memory, memoryBytes(spec), saved.memory);
      await vm.load(isRecent(spec.machine.qemu) ? `file:${devicesName}` : `fd:${inheritedFd.state}`);
      vm.dropLoaded();
      return vm;
    });
  }

  startWarm(spec: VmSpec, onSpawn: (process: VmProcess) => void): Promise<WarmProcess> {
    const start: Start = { spec, purpose: "warm", state: null, onSpawn };
    return this.#start(start, (vm, jailed) => WarmQemu.of(vm, jailed));
  }

  async adopt(spec: VmSpec, process: VmProcess): Promise<Vm> {
    if (!(await isVm(process, spec.nonce))) {
      throw new CapsuleError("agent_error", `Process ${process.pid} is not the VM of ${spec.name}, or no longer.`);
    }
    this.#options.jail?.jail.adopt(process);
    return await QemuVm.adopt(spec, process);
  }

  async reap(nonce: string, process: VmProcess): Promise<void> {
    const isOurs = (await isVm(process, nonce)) || this.#options.jail?.jail.holds(process);
    if (isOurs) await endProcess(process);
  }

  findBelow(folder: string): Promise<{ process: VmProcess; nonce: string }[]> {
    return findBelow(folder);
  }

  find(nonce: string): Promise<VmProcess[]> {
    return findByNonce(nonce);
  }

  async #start<T>(start: Start, prepare: (vm: QemuVm, jailed: Jailed) => Promise<T>): Promise<T> {
    const { spec, purpose, onSpawn } = start;
    await clearFolder(spec.files.dir);
    let jailed: Jailed | undefined;
    let vm: QemuVm | undefined;
    try {
      jailed = await this.#spawn(start);
      onSpawn(jailed.process);
      vm = await QemuVm.connect(spec, jailed.process);
      return await prepare(vm, jailed);
    } catch (error) {
      if (vm !== undefined) await vm.kill();
      else for (const process of await findByNonce(spec.nonce)) await endProcess(process);
      await clearFolder(spec.files.dir);
      if (isOutOfSpace(error)) throw error;
      const said = (await jailed?.stderrTail()) ?? "";
      const what = purpose === "restore" ? "restored" : "started";
      throw new CapsuleError("agent_error", `The VM of ${spec.name} could not be ${what}.`, {
        cause: said === "" ? error : new Error(`${String(error)}; QEMU said: ${said}`, { cause: error }),
      });
    }
  }

  async #spawn({ spec, purpose, state: saved }: Start): Promise<Jailed> {
    const { program, accelerator, jail } = this.#options;
    const { dir } = spec.files;
    const placeholderDiskBytes = purpose === "warm" ? await sizeOfDisk(spec) : null;
    const warmsTranslations = purpose === "warm" && canWarmTranslations(spec.machine);
    const launch = {
      spec,
      isIncoming: purpose !== "boot",
      tscKhz: accelerator.tscKhz,
      placeholderDiskBytes,
      warmsTranslations,
    };
    const devices = await layDevices(dir, saved);
    await using state = await open(devices, "r");
    const folder = openSync(dir, constants.O_RDONLY | constants.O_DIRECTORY);
    let sockets: Listener[] = [];
    try {
      sockets = await listenForVm(folder, [
        agentSocketName,
        qmpSocketName,
        ...(warmsTranslations ? [qtestSocketName] : []),
      ]);
      const inherited = sockets.map(({ fd }) => fd);
      if (!isRecent(spec.machine.qemu)) inherited.push(state.fd);
      const args = qemuArgs(launch);
      if (jail === undefined)
        return { ...spawnDetached([program, ...args], dir, inherited), chownToJail: async () => {} };
      const cell = await qemuProfile(spec, jail.view, purpose);
      return await jail.jail.start([jail.view.program, ...args], cell, inherited);
    } finally {
      for (const socket of sockets) socket.close();
      closeSync(folder);
    }
  }
}

function isOutOfSpace(error: unknown): boolean {
  const { code } = error as NodeJS.ErrnoException;
  return code === "ENOSPC" || code === "EDQUOT";
}

interface Start {
  spec: VmSpec;
  purpose: Purpose;
  /** Device state to begin with; null: none, or none yet. */
  state: string | null;
  onSpawn: (process: VmProcess) => void;
}

/**
 * With 2 GiB to the byte, QEMU's loader lays the initrd over what the firmware keeps at the end of memory, and the kernel
 * never starts. One MiB less, and it goes below.
 */
function bootableMemoryMb(memoryMb: number): number {
  return memoryMb === 2_048 ? 2_047 : memoryMb;
}
