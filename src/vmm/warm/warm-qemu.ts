/**
 * A warm process in QEMU: started with machine, memory and backing files, with a placeholder instead of the disk layer, and
 * claimed later for a VM that differs from others only in disk layer, memory diff and devices. It is an optimization: every
 * VM can be restored by Vmm.restore too, only slower.
 *
 *      sockets, device state   moved from the process's folder to the VM's: QEMU keeps the same files open
 *      disk layer              given to the jail's user and linked into the hand-over folder while QEMU opens it
 *      memory                  written into the process, as in every restore
 *
 * The layer itself stays in the VM's folder, so a failed claim has nothing to put back.
 *
 * Under software emulation its translation cache is warmed before the claim: it is loaded with the base's own checkpoint, runs
 * a few commands, is reset, and every page it has written gets the base's content again. QEMU's translations stay, by physical
 * address. A claim clears the pages in which the VM differs from the base through qtest, as a guest's own write would, so QEMU
 * drops the translations of these pages and no others (docs/adr/0013).
 */
import { link, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { allSettledOrThrow } from "../all-settled.ts";
import { withoutCpuCommon } from "../device-state.ts";
import type { Jailed } from "../jail/jail.ts";
import { handoverPath } from "../jail/jail-args.ts";
import { canWarmTranslations } from "../machine/qemu-args.ts";
import { loadMemory, pagesOf, resetMemory } from "../memory/memory-diff.ts";
import { endOnAbort } from "../process.ts";
import { memoryBytes, sizeOfDisk } from "../qemu-profile.ts";
import type { QemuVm } from "../qemu-vm.ts";
import { deviceStateName, moveFolder, qtestSocketName, writeDeviceState } from "../vm-folder.ts";
import type { SavedVm, Vm, VmEnd, VmProcess, VmSpec, WarmProcess, WarmSpec } from "../vmm.ts";
import { snapshotFile } from "./qcow2-snapshot.ts";
import { type Pages, Qtest } from "./qtest.ts";
import { attachLayer, detachLayer, reloadDevices, removeQtest, resetDevices } from "./warm-devices.ts";

/** 64 MiB. A process in which the warm-up writes more would take too much memory while it waits. */
const maxPages = 16_384;
/** Name of the layer in the hand-over folder. */
const layerName = "layer";

/** The VM that the process is until it is claimed: its layer is where QEMU will open it. */
export function vmSpecOf({ handoverDir, ...spec }: WarmSpec): VmSpec {
  return { ...spec, files: { ...spec.files, disk: join(handoverDir, layerName) } };
}

export class WarmQemu implements WarmProcess {
  readonly spec: WarmSpec;
  readonly ended: Promise<VmEnd>;
  readonly #vm: QemuVm;
  readonly #jailed: Jailed;
  readonly #qtest: Qtest | undefined;
  #isWarm = false;

  /** `vm` was just started. */
  static async connect(spec: WarmSpec, vm: QemuVm, jailed: Jailed): Promise<WarmQemu> {
    if (!canWarmTranslations(spec.machine)) return new WarmQemu(spec, vm, jailed, undefined);
    const qtest = await Qtest.connect(vm.socket(qtestSocketName));
    await rm(join(spec.files.dir, qtestSocketName));
    return new WarmQemu(spec, vm, jailed, qtest);
  }

  private constructor(spec: WarmSpec, vm: QemuVm, jailed: Jailed, qtest: Qtest | undefined) {
    this.spec = spec;
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

  async warmTranslations(
    saved: SavedVm,
    layer: string,
    warmUp: (vm: Vm) => Promise<void>,
    signal?: AbortSignal,
  ): Promise<void> {
    const [vm, qtest] = [this.#vm, this.#qtest];
    if (qtest === undefined || this.#isWarm) throw new Error("this process cannot warm its translations (again)");
    await this.#endingOnFailure(signal, async () => {
      await this.#load(layer, saved);
      await warmUp(vm);
      await resetDevices(vm.monitor);
      await vm.clearConsole();
      const bytes = memoryBytes(vm.spec);
      const clear = (runs: Pages[]) => qtest.clear(runs);
      await resetMemory(vm.process, vm.spec.files.memory, bytes, maxPages, clear);
      await detachLayer(vm.monitor, await sizeOfDisk(vm.spec));
    });
    this.#isWarm = true;
  }

  claim(spec: VmSpec, saved: SavedVm, signal?: AbortSignal): Promise<Vm> {
    const vm = this.#vm;
    return this.#endingOnFailure(signal, async () => {
      await moveFolder(this.spec.files.dir, spec.files.dir);
      vm.rebind(spec);
      if (this.#isWarm) await this.#reload(spec.files.disk, saved);
      else await this.#load(spec.files.disk, saved);
      if (this.#qtest !== undefined) await removeQtest(vm.monitor);
      this.#qtest?.close();
      return vm;
    });
  }

  kill(): Promise<void> {
    this.#qtest?.close();
    return this.#vm.kill();
  }

  async #endingOnFailure<T>(signal: AbortSignal | undefined, work: () => Promise<T>): Promise<T> {
    try {
      using _ending = endOnAbort(this.process, signal);
      const result = await work();
      signal?.throwIfAborted();
      return result;
    } catch (error) {
      await this.kill();
      signal?.throwIfAborted();
      throw error;
    }
  }

  /** Loads a process that has not run. */
  async #load(layer: string, saved: SavedVm): Promise<void> {
    const vm = this.#vm;
    const laying = readFile(saved.state).then((devices) => writeDeviceState(vm.spec.files.dir, devices));
    await allSettledOrThrow([laying, this.#handOver(layer), this.#fill(saved)]);
    await vm.load(`file:${deviceStateName}`);
  }

  /** Loads a process whose translations are warm. */
  async #reload(layer: string, saved: SavedVm): Promise<void> {
    const { state, memory } = saved;
    const [vm, qtest] = [this.#vm, this.#qtest!];
    const lay = async () => {
      const devices = await readFile(state);
      await writeDeviceState(vm.spec.files.dir, snapshotFile(withoutCpuCommon(devices) ?? devices));
    };
    const refill = async () => {
      if (memory !== null) await qtest.clear(await pagesOf(memory, memoryBytes(vm.spec)));
      await this.#fill(saved);
    };
    await allSettledOrThrow([lay(), this.#handOver(layer), refill()]);
    await reloadDevices(vm.monitor);
  }

  async #handOver(layer: string): Promise<void> {
    const linked = join(this.spec.handoverDir, layerName);
    await this.#jailed.chownToJail(layer);
    await link(layer, linked);
    await attachLayer(this.#vm.monitor, join(handoverPath, layerName));
    await rm(linked);
  }

  async #fill({ memory: path, pieces }: SavedVm): Promise<void> {
    const { spec, process } = this.#vm;
    if (path !== null) await loadMemory(process, spec.files.memory, memoryBytes(spec), path, pieces);
  }
}
