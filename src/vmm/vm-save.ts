/**
 * One moment of a VM, on disk. Devices and memory are read one after the other, yet must be of one moment
 * (docs/adr/0006): the CPUs stand still, but a byte that is still on its way through the agent's port moves
 * both, so the devices are looked at again afterwards. What QEMU does for it goes over its monitor, which reads byte by byte
 * (docs/adr/0016).
 */
import { rm, writeFile } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { CapsuleError } from "../wire/errors.ts";
import { allSettledOrThrow } from "./all-settled.ts";
import { flushDeadlineMs, saveDevices, statusOf } from "./devices.ts";
import { MemorySave } from "./memory/memory-diff.ts";
import { canWarmTranslations, disk } from "./qemu-args.ts";
import { memoryBytes } from "./qemu-profile.ts";
import type { Qmp } from "./qmp.ts";
import type { AroundSave, SavedVm, SaveResult, Vm } from "./vmm.ts";
import { isInterrupted } from "./warm/device-state.ts";

const attempts = 8;
/**
 * How long a processor in the midst of an interrupt may go on, each time. Ever longer: a processor that the host leaves no
 * time is where it was.
 */
const momentsMs = [0, 1, 2, 4, 8, 16, 32] as const;

type Saved = SavedVm & { memory: string };

export class VmSave {
  readonly #vm: Pick<Vm, "spec" | "process" | "stop" | "resume">;
  readonly #qmp: Qmp;
  readonly #to: Saved;
  readonly #around: AroundSave;
  /** What is saved without an interrupt is resumed several times as fast. */
  readonly #moments: number[];

  constructor(vm: Pick<Vm, "spec" | "process" | "stop" | "resume">, qmp: Qmp, to: Saved, around: AroundSave) {
    this.#vm = vm;
    this.#qmp = qmp;
    this.#to = to;
    this.#around = around;
    this.#moments = canWarmTranslations(vm.spec.machine) ? [...momentsMs] : [];
  }

  /** Once. What failed leaves no files, and the VM stopped if it came to that. */
  async run(): Promise<SaveResult> {
    const isCalm = Promise.resolve(this.#around.calm?.());
    isCalm.catch(() => {}); // seen by each attempt
    try {
      for (let attempt = 1; attempt <= attempts; attempt++) {
        const saved = await this.#attempt(isCalm);
        if (saved !== undefined) return saved;
        await rm(this.#to.memory);
        await delay(attempt);
      }
      throw new Error(`The devices of ${this.#vm.spec.name} do not come to rest`);
    } catch (error) {
      await Promise.all([rm(this.#to.state, { force: true }), rm(this.#to.memory, { force: true })]);
      throw error;
    }
  }

  /** Undefined when the devices have moved meanwhile. */
  async #attempt(isCalm: Promise<unknown>): Promise<SaveResult | undefined> {
    const { spec, process } = this.#vm;
    const { meanwhile, seal } = this.#around;
    await using memory = new MemorySave(process.pid, spec.files.memory, memoryBytes(spec), this.#to.memory);
    const opening = memory.open();
    opening.catch(() => {}); // seen below
    try {
      await isCalm;
    } catch (error) {
      await Promise.allSettled([opening]);
      throw error;
    }
    const [{ devices, isPaused }] = await allSettledOrThrow([this.#standStill(), opening]);
    const isFlushed = this.#requireFlushed(); // answered while memory is copied
    const writing = writeFile(this.#to.state, devices, { mode: 0o600 });
    const aside = Promise.resolve().then(meanwhile);
    const [, , { bytes, pages }] = await allSettledOrThrow([isPaused, isFlushed, memory.copy(), writing, aside]);
    const whole = memory.finish();
    const sealing = Promise.resolve().then(() => seal?.({ bytes, whole }));
    const [again] = await allSettledOrThrow([saveDevices(this.#qmp, spec), whole, sealing]);
    return devices.equals(again) ? { stateBytes: devices.length, memoryBytes: bytes, pages } : undefined;
  }

  /** Stops the CPUs and looks at the devices, in one breath; one in an interrupt goes on for the next of the moments first. */
  async #standStill() {
    for (;;) {
      const stopping = this.#vm.stop().then(this.#around.stopped);
      const looking = saveDevices(this.#qmp, this.#vm.spec);
      const isPaused = allSettledOrThrow([stopping, this.#requirePaused()]);
      isPaused.catch(() => {}); // seen here or by whoever is given it
      const devices = await looking.catch(async (error: unknown) => {
        await isPaused.then(() => this.#requireFlushed()); // where the disk is the reason, one of them says so
        throw error;
      });
      const moment = isInterrupted(devices) ? this.#moments.shift() : undefined;
      if (moment === undefined) return { devices, isPaused };
      await isPaused;
      await this.#vm.resume();
      if (moment > 0) await delay(moment);
    }
  }

  async #requirePaused(): Promise<void> {
    const { name } = this.#vm.spec;
    const status = await statusOf(this.#qmp, flushDeadlineMs);
    if (status === "io-error") throw new CapsuleError("no_space", `${name} waits for space on the host's disk`);
    if (status !== "paused") throw new Error(`The VM of ${name} is not stopped but ${status}`);
  }

  /** `stop` flushes the disk and keeps to itself if that failed. Reopening flushes too, and says. */
  async #requireFlushed(): Promise<void> {
    await this.#qmp.command("blockdev-reopen", { options: [disk] }, flushDeadlineMs);
  }
}
