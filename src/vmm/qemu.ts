/**
 * The Vmm on QEMU's microvm: starts, restores, adopts and reaps. What one VM does once it is there stands in qemu-vm.ts.
 *
 * Every start follows one road: spawn, tell the caller which process it is, reach QEMU over QMP, put the saved memory in
 * place, load the devices. Whatever fails on it, the process is ended and its sockets are removed.
 */
import { open } from "node:fs/promises";
import { CapsuleError } from "../wire/errors.ts";
import type { Accelerator } from "./accelerator.ts";
import { loadMemory } from "./memory-diff.ts";
import { endProcess, findBelow, findByNonce, isVm, spawnDetached } from "./process.ts";
import { isRecent, layout, qemuArgs } from "./qemu-args.ts";
import { memoryBytes, QemuVm, removeSockets } from "./qemu-vm.ts";
import type { Machine, SavedVm, Vm, Vmm, VmProcess, VmSpec } from "./vmm.ts";

/** The descriptor under which an older QEMU inherits the device state. */
const inheritedStateFd = 3;

export interface QemuOptions {
  /** The program, e.g. "qemu-system-x86_64". */
  program: string;
  /** Its version, as qemuVersion says. */
  version: string;
  accelerator: Accelerator;
  /** Puts a jail around the command line. */
  wrap?: (argv: string[], spec: VmSpec) => string[];
}

export class Qemu implements Vmm {
  readonly #options: QemuOptions;

  constructor(options: QemuOptions) {
    this.#options = options;
  }

  machine(vcpus: number, memoryMb: number): Machine {
    const { version, accelerator } = this.#options;
    return { qemu: version, accelerator: accelerator.kind, cpu: accelerator.cpu, layout, vcpus, memoryMb };
  }

  boot(spec: VmSpec, onSpawn: (process: VmProcess) => void): Promise<Vm> {
    return this.#start({ spec, isIncoming: false, inherited: [], onSpawn }, async () => {});
  }

  async restore(spec: VmSpec, saved: SavedVm, onSpawn: (process: VmProcess) => void): Promise<Vm> {
    await using state = await open(saved.state, "r");
    const isByName = isRecent(spec.machine.qemu);
    const inherited = isByName ? [] : [state.fd];
    return await this.#start({ spec, isIncoming: true, inherited, onSpawn }, async (vm) => {
      // Devices look into memory while they load, so memory comes first.
      if (saved.memory !== null) await loadMemory(vm.process.pid, spec.files.memory, memoryBytes(spec), saved.memory);
      await vm.load(isByName ? `file:${saved.state}` : `fd:${inheritedStateFd}`);
    });
  }

  async adopt(spec: VmSpec, process: VmProcess): Promise<Vm> {
    if (!(await isVm(process, spec.nonce))) {
      throw new CapsuleError("agent_error", `Process ${process.pid} is not the VM of ${spec.name}, or no longer.`);
    }
    return await QemuVm.adopt(spec, process);
  }

  async reap(nonce: string, process: VmProcess): Promise<void> {
    if (await isVm(process, nonce)) await endProcess(process);
  }

  findBelow(folder: string): Promise<{ process: VmProcess; nonce: string }[]> {
    return findBelow(folder);
  }

  find(nonce: string): Promise<VmProcess[]> {
    return findByNonce(nonce);
  }

  async #start(start: Start, prepare: (vm: QemuVm) => Promise<void>): Promise<Vm> {
    const { program, accelerator, wrap } = this.#options;
    const { spec, isIncoming, inherited, onSpawn } = start;
    const argv = [program, ...qemuArgs({ spec, isIncoming, tscKhz: accelerator.tscKhz })];
    await removeSockets(spec.files.dir);
    const spawned = spawnDetached(wrap?.(argv, spec) ?? argv, spec.files.dir, inherited);
    let vm: QemuVm | undefined;
    try {
      onSpawn(spawned.process);
      vm = await QemuVm.connect(spec, spawned.process);
      await prepare(vm);
      return vm;
    } catch (error) {
      await (vm === undefined ? endProcess(spawned.process) : vm.kill());
      await removeSockets(spec.files.dir);
      const said = await spawned.lastWords();
      throw new CapsuleError(
        "agent_error",
        `The VM of ${spec.name} could not be ${isIncoming ? "restored" : "started"}.`,
        {
          cause: said === "" ? error : new Error(`${String(error)}; QEMU said: ${said}`, { cause: error }),
        },
      );
    }
  }
}

interface Start {
  spec: VmSpec;
  isIncoming: boolean;
  /** Descriptors for QEMU, from 3 on. */
  inherited: number[];
  onSpawn: (process: VmProcess) => void;
}
