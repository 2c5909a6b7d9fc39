/**
 * A QEMU that waits, and how it becomes a VM. It was started with the machine, its memory and the files below its disk,
 * with nothing in the place of the disk's own layer; its jail shows it a folder, the hatch, in which there is nothing.
 *
 *      sockets, device state   moved from the blank's folder to the VM's: the same files, that QEMU has open or sees
 *      disk layer              made its user's own and linked into the hatch for as long as QEMU needs to open it
 *      memory                  written into the process, as in every restore
 *
 * The layer itself stays where it is. Should anything go wrong, there is nothing to put back.
 *
 * Under software emulation it rehearses while it waits. It is loaded with what all of its kind begin as, and plays that for a
 * while; then the machine is reset and every page that was written is the base's again. What it keeps is the code that it has
 * translated, which belongs to addresses in the guest's memory: when it becomes a VM, the pages in which that differs from the
 * base are cleared the way a guest writes, and QEMU forgets what it has from there, and nothing else (docs/adr/0013).
 */
import { link, readFile, rm } from "node:fs/promises";
import { basename, join } from "node:path";
import { allSettledOrThrow } from "../all-settled.ts";
import type { Jailed } from "../jail/jail.ts";
import { handoverPath } from "../jail/jail-args.ts";
import { loadMemory, pagesOf, resetMemory } from "../memory/memory-diff.ts";
import { canWarmTranslations } from "../qemu-args.ts";
import { memoryBytes } from "../qemu-profile.ts";
import type { QemuVm } from "../qemu-vm.ts";
import { devicesName, moveFolder, qtestSocketName, writeDevices } from "../vm-folder.ts";
import type { SavedVm, Vm, VmEnd, VmProcess, VmSpec, WarmProcess } from "../vmm.ts";
import { withoutCpuCommon } from "./device-state.ts";
import { snapshotFile } from "./qcow2-snapshot.ts";
import { type Pages, Qtest } from "./qtest.ts";

/** A guest that makes more than this its own in a rehearsal, 64 MiB, leaves a process that is too large to wait. */
const mostPages = 16_384;

export class WarmQemu implements WarmProcess {
  readonly spec: VmSpec;
  readonly ended: Promise<VmEnd>;
  readonly #vm: QemuVm;
  readonly #jailed: Jailed;
  readonly #qtest: Qtest | undefined;
  #isWarm = false;

  /** Of a QEMU that was just started. */
  static async of(vm: QemuVm, jailed: Jailed): Promise<WarmQemu> {
    if (!canWarmTranslations(vm.spec.machine)) return new WarmQemu(vm, jailed, undefined);
    const qtest = await Qtest.connect(vm.socket(qtestSocketName));
    await rm(join(vm.spec.files.dir, qtestSocketName));
    return new WarmQemu(vm, jailed, qtest);
  }

  private constructor(vm: QemuVm, jailed: Jailed, qtest: Qtest | undefined) {
    this.spec = vm.spec;
    this.ended = vm.ended;
    this.#vm = vm;
    this.#jailed = jailed;
    this.#qtest = qtest;
  }

  get process(): VmProcess {
    return this.#vm.process;
  }

  get canWarmTranslations(): boolean {
    return this.#qtest !== undefined && !this.#isWarm;
  }

  async warmTranslations(saved: SavedVm, layer: string, play: (vm: Vm) => Promise<void>): Promise<void> {
    const [vm, qtest] = [this.#vm, this.#qtest];
    if (qtest === undefined || this.#isWarm) throw new Error("this blank does not rehearse, or not again");
    try {
      await this.#load(layer, saved);
      await play(vm);
      await vm.reset();
      const { files } = this.spec;
      const forget = (runs: Pages[]) => qtest.clear(runs);
      await resetMemory(vm.process.pid, files.memory, memoryBytes(this.spec), mostPages, forget);
      await vm.detach();
      this.#isWarm = true;
    } catch (error) {
      await this.kill();
      throw error;
    }
  }

  async claim(spec: VmSpec, saved: SavedVm): Promise<Vm> {
    const vm = this.#vm;
    try {
      await moveFolder(this.spec.files.dir, spec.files.dir);
      vm.rebind(spec);
      if (this.#isWarm) await this.#reload(spec.files.disk, saved);
      else await this.#load(spec.files.disk, saved);
      if (this.#qtest !== undefined) await vm.closeQtest();
      this.#qtest?.close();
      vm.dropLoaded();
      return vm;
    } catch (error) {
      await this.kill();
      throw error;
    }
  }

  kill(): Promise<void> {
    this.#qtest?.close();
    return this.#vm.kill();
  }

  /** Into a QEMU that has not run. */
  async #load(layer: string, { state, memory }: SavedVm): Promise<void> {
    const vm = this.#vm;
    const laying = readFile(state).then((devices) => writeDevices(vm.spec.files.dir, devices));
    await allSettledOrThrow([laying, this.#handIn(layer), this.#fill(memory)]);
    await vm.load(`file:${devicesName}`);
  }

  /** Into one that has rehearsed. */
  async #reload(layer: string, { state, memory }: SavedVm): Promise<void> {
    const [vm, qtest] = [this.#vm, this.#qtest!];
    const lay = async () => {
      const devices = await readFile(state);
      await writeDevices(vm.spec.files.dir, snapshotFile(withoutCpuCommon(devices) ?? devices));
    };
    const refill = async () => {
      if (memory !== null) await qtest.clear(await pagesOf(memory, memoryBytes(vm.spec)));
      await this.#fill(memory);
    };
    await allSettledOrThrow([lay(), this.#handIn(layer), refill()]);
    await vm.reload();
  }

  async #handIn(layer: string): Promise<void> {
    const seenAs = this.spec.files.disk;
    await this.#jailed.chownToJail(layer);
    await link(layer, seenAs);
    await this.#vm.attach(join(handoverPath, basename(seenAs)));
    await rm(seenAs);
  }

  async #fill(diff: string | null): Promise<void> {
    const { spec, process } = this.#vm;
    if (diff !== null) await loadMemory(process.pid, spec.files.memory, memoryBytes(spec), diff);
  }
}
