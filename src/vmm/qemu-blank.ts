/**
 * A QEMU that waits, and how it becomes a VM. It was started with the machine, its memory and the files below its disk,
 * with nothing in the place of the disk's own layer; its jail shows it a folder, the hatch, in which there is nothing.
 *
 *      sockets, device state   moved from the blank's folder to the VM's: the same files, that QEMU has open or sees
 *      disk layer              made its user's own and linked into the hatch for as long as QEMU needs to open it
 *      memory                  written into the process, as in every restore
 *
 * The layer itself stays where it is. Should anything go wrong, there is nothing to put back.
 */
import { link, rm } from "node:fs/promises";
import type { Jailed } from "./jail.ts";
import { loadMemory } from "./memory-diff.ts";
import { memoryBytes, type QemuVm } from "./qemu-vm.ts";
import { moveFolder } from "./vm-folder.ts";
import type { Blank, SavedVm, Vm, VmEnd, VmProcess, VmSpec } from "./vmm.ts";

export class QemuBlank implements Blank {
  readonly spec: VmSpec;
  readonly ended: Promise<VmEnd>;
  readonly #vm: QemuVm;
  readonly #jailed: Jailed;

  constructor(vm: QemuVm, jailed: Jailed) {
    this.spec = vm.spec;
    this.ended = vm.ended;
    this.#vm = vm;
    this.#jailed = jailed;
  }

  get process(): VmProcess {
    return this.#vm.process;
  }

  async claim(spec: VmSpec, saved: SavedVm): Promise<Vm> {
    const vm = this.#vm;
    try {
      await moveFolder(this.spec.files.dir, spec.files.dir, saved.state);
      vm.become(spec);
      await Promise.all([this.#handIn(spec.files.disk), this.#fill(saved.memory)]);
      await vm.load(`file:${vm.devices}`);
      return vm;
    } catch (error) {
      await vm.kill();
      throw error;
    }
  }

  kill(): Promise<void> {
    return this.#vm.kill();
  }

  async #handIn(layer: string): Promise<void> {
    const seenAs = this.spec.files.disk;
    await this.#jailed.give(layer);
    await link(layer, seenAs);
    await this.#vm.attach(seenAs);
    await rm(seenAs);
  }

  async #fill(diff: string | null): Promise<void> {
    const { spec, process } = this.#vm;
    if (diff !== null) await loadMemory(process.pid, spec.files.memory, memoryBytes(spec), diff);
  }
}
