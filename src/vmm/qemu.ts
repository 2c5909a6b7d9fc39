/**
 * The Vmm on QEMU's microvm: starts, restores, adopts and reaps. What one VM does once it is there stands in qemu-vm.ts.
 *
 * Every start follows one road: lay out the VM's folder, start QEMU in its jail, tell the caller which process it is, reach
 * it over QMP, put the saved memory in place, load the devices. Whatever fails on it, the process is ended and the folder
 * is as before.
 */
import { closeSync, constants, openSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { CapsuleError } from "../wire/errors.ts";
import type { Accelerator } from "./accelerator.ts";
import type { Jail, Jailed } from "./jail.ts";
import type { View } from "./jail-view.ts";
import type { Listener } from "./listener.ts";
import { loadMemory } from "./memory-diff.ts";
import { endProcess, findBelow, findByNonce, isVm, spawnDetached } from "./process.ts";
import { inheritedFd, isRecent, layout, qemuArgs } from "./qemu-args.ts";
import { qemuCell } from "./qemu-cell.ts";
import { memoryBytes, QemuVm } from "./qemu-vm.ts";
import { clearFolder, devicesName, layDevices, listenForVm } from "./vm-folder.ts";
import type { Machine, SavedVm, Vm, Vmm, VmProcess, VmSpec } from "./vmm.ts";

export interface QemuOptions {
  /** The program, e.g. "qemu-system-x86_64". */
  program: string;
  /** Its version, as qemuVersion says. */
  version: string;
  accelerator: Accelerator;
  /** Around every QEMU, with what the program itself needs to see. Undefined: none. */
  jail?: { jail: Jail; view: View } | undefined;
}

export class Qemu implements Vmm {
  readonly #options: QemuOptions;

  constructor(options: QemuOptions) {
    this.#options = options;
  }

  machine(vcpus: number, memoryMb: number): Machine {
    const { version, accelerator } = this.#options;
    const { kind, cpu } = accelerator;
    return { qemu: version, accelerator: kind, cpu, layout, vcpus, memoryMb: bootableMemoryMb(memoryMb) };
  }

  boot(spec: VmSpec, onSpawn: (process: VmProcess) => void): Promise<Vm> {
    return this.#start({ spec, saved: null, onSpawn }, async () => {});
  }

  restore(spec: VmSpec, saved: SavedVm, onSpawn: (process: VmProcess) => void): Promise<Vm> {
    return this.#start({ spec, saved, onSpawn }, async (vm) => {
      // Devices look into memory while they load, so memory comes first.
      if (saved.memory !== null) await loadMemory(vm.process.pid, spec.files.memory, memoryBytes(spec), saved.memory);
      const isByName = isRecent(spec.machine.qemu);
      await vm.load(isByName ? `file:${join(spec.files.dir, devicesName)}` : `fd:${inheritedFd.state}`);
    });
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

  async #start(start: Start, prepare: (vm: QemuVm) => Promise<void>): Promise<Vm> {
    const { spec, saved, onSpawn } = start;
    await clearFolder(spec.files.dir);
    let jailed: Jailed | undefined;
    let vm: QemuVm | undefined;
    try {
      jailed = await this.#spawn(spec, saved);
      onSpawn(jailed.process);
      vm = await QemuVm.connect(spec, jailed.process);
      await prepare(vm);
      return vm;
    } catch (error) {
      if (vm !== undefined) await vm.kill();
      else for (const process of await findByNonce(spec.nonce)) await endProcess(process);
      await clearFolder(spec.files.dir);
      if (isOutOfSpace(error)) throw error;
      const said = (await jailed?.lastWords()) ?? "";
      const what = saved === null ? "started" : "restored";
      throw new CapsuleError("agent_error", `The VM of ${spec.name} could not be ${what}.`, {
        cause: said === "" ? error : new Error(`${String(error)}; QEMU said: ${said}`, { cause: error }),
      });
    }
  }

  async #spawn(spec: VmSpec, saved: SavedVm | null): Promise<Jailed> {
    const { program, accelerator, jail } = this.#options;
    const { dir } = spec.files;
    const args = qemuArgs({ spec, isIncoming: saved !== null, tscKhz: accelerator.tscKhz });
    const devices = await layDevices(dir, saved?.state ?? null);
    await using state = await open(devices, "r");
    const folder = openSync(dir, constants.O_RDONLY | constants.O_DIRECTORY);
    let sockets: Listener[] = [];
    try {
      sockets = await listenForVm(folder);
      const inherited = sockets.map(({ fd }) => fd);
      if (!isRecent(spec.machine.qemu)) inherited.push(state.fd);
      if (jail === undefined) return spawnDetached([program, ...args], dir, inherited);
      const cell = await qemuCell(spec, jail.view, saved !== null);
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
  /** Null: started from its kernel. */
  saved: SavedVm | null;
  onSpawn: (process: VmProcess) => void;
}

/**
 * With 2 GiB to the byte, QEMU's loader lays the initrd over what the firmware keeps at the end of memory, and the kernel
 * never starts. One MiB less, and it goes below.
 */
function bootableMemoryMb(memoryMb: number): number {
  return memoryMb === 2_048 ? 2_047 : memoryMb;
}
