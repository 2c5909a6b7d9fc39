/**
 * A save of a VM in QEMU. Devices and memory are read one after the other, yet must be of one instant
 * (docs/adr/0006): the CPUs are stopped, but a byte that is still on its way through the agent's port
 * changes both. So the devices are read again afterwards and compared. Monitor commands are few and pipelined, because QEMU
 * reads them byte by byte (docs/adr/0016).
 */
import { rm, writeFile } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../wire/errors.ts";
import { allSettledOrThrow } from "./all-settled.ts";
import { isInterrupted } from "./device-state.ts";
import { flushDeadlineMs, saveDeviceState, statusOf } from "./devices.ts";
import { canWarmTranslations, disk } from "./machine/qemu-args.ts";
import { MemorySave } from "./memory/memory-diff.ts";
import { memoryBytes } from "./qemu-profile.ts";
import type { Qmp } from "./qmp.ts";
import type { SavedVm, SaveSizes, Vm, VmSave } from "./vmm.ts";

const maxAttempts = 8;
/**
 * How long a CPU that is handling an interrupt runs on before it is stopped again. The delays grow, since on a busy host a
 * short one may pass without the CPU having run.
 */
const retryDelaysMs = [0, 1, 2, 4, 8, 16, 32] as const;

type Files = SavedVm & { memory: string };

/** Runs all steps one after the other, for a VM whose guest is frozen or needs no freezing. */
export async function saveVm(vm: Pick<Vm, "openSave">, to: Files): Promise<SaveSizes> {
  await using save = vm.openSave(to);
  for (;;) {
    await save.prepare();
    await save.stopCpus();
    const sizes = await save.copyMemory();
    const [isConsistent] = await allSettledOrThrow([save.isConsistent(), save.finish()]);
    if (isConsistent) return sizes;
  }
}

export class QemuSave implements VmSave {
  readonly #vm: Pick<Vm, "spec" | "process" | "stop" | "resume">;
  readonly #qmp: Qmp;
  readonly #to: Files;
  /** A VM saved outside of an interrupt is resumed several times as fast by a process with warm translations. */
  readonly #retryDelaysMs: number[];
  #memory: MemorySave | undefined;
  #devices: Buffer | undefined;
  /** Rejects unless QEMU says that the VM is stopped; its answer is awaited while memory is copied. */
  #isPaused: Promise<unknown> = Promise.resolve();
  #attempt = 0;
  #isDone = false;

  constructor(vm: Pick<Vm, "spec" | "process" | "stop" | "resume">, qmp: Qmp, to: Files) {
    this.#vm = vm;
    this.#qmp = qmp;
    this.#to = to;
    this.#retryDelaysMs = canWarmTranslations(vm.spec.machine) ? [...retryDelaysMs] : [];
  }

  async prepare(): Promise<void> {
    if (this.#attempt > 0) {
      await this.#removeMemory();
      await delay(this.#attempt);
    }
    this.#attempt++;
    const { spec, process } = this.#vm;
    this.#memory = new MemorySave(process, spec.files.memory, memoryBytes(spec), this.#to.memory);
    await this.#memory.open();
  }

  async stopCpus(): Promise<void> {
    for (;;) {
      const stopping = this.#vm.stop();
      const reading = saveDeviceState(this.#qmp, this.#vm.spec);
      this.#isPaused = allSettledOrThrow([stopping, this.#requirePaused()]);
      this.#isPaused.catch(() => {}); // seen below or in copyMemory
      this.#devices = await reading.catch(async (error: unknown) => {
        await this.#isPaused.then(() => this.#requireFlushed()); // a full disk, if that is the reason, is reported by these
        throw error;
      });
      const delayMs = isInterrupted(this.#devices) ? this.#retryDelaysMs.shift() : undefined;
      if (delayMs === undefined) return await stopping;
      await this.#isPaused;
      await this.#vm.resume();
      if (delayMs > 0) await delay(delayMs);
    }
  }

  async copyMemory(): Promise<SaveSizes> {
    const [memory, devices] = [this.#memory, this.#devices];
    if (memory === undefined || devices === undefined) throw new Error("memory is copied after prepare and stopCpus");
    const writing = writeFile(this.#to.state, devices, { mode: 0o600 });
    const work = [this.#isPaused, this.#requireFlushed(), writing, memory.copy()] as const;
    const [, , , { bytes, pages }] = await allSettledOrThrow(work);
    return { stateBytes: devices.length, memoryBytes: bytes, pages };
  }

  async finish(): Promise<void> {
    await this.#memory?.finish();
  }

  async isConsistent(): Promise<boolean> {
    this.#isDone = this.#devices?.equals(await saveDeviceState(this.#qmp, this.#vm.spec)) ?? false;
    if (this.#isDone || this.#attempt < maxAttempts) return this.#isDone;
    throw new Error(`The devices of ${this.#vm.spec.name} still change while its CPUs are stopped`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isDone) return await this.#memory?.[Symbol.asyncDispose]();
    await Promise.all([this.#removeMemory(), rm(this.#to.state, { force: true })]);
  }

  async #removeMemory(): Promise<void> {
    await this.#memory?.[Symbol.asyncDispose]();
    await rm(this.#to.memory, { force: true });
  }

  async #requirePaused(): Promise<void> {
    const { name } = this.#vm.spec;
    const status = await statusOf(this.#qmp, flushDeadlineMs);
    if (status === "io-error") throw new CapsuleError("no_space", `${name} waits for space on the host's disk`);
    if (status !== "paused") throw new Error(`The VM of ${name} is not stopped but ${status}`);
  }

  /** `stop` flushes the disk but does not report a failure. Reopening flushes too, and reports it. */
  async #requireFlushed(): Promise<void> {
    await this.#qmp.command("blockdev-reopen", { options: [disk] }, flushDeadlineMs);
  }
}
