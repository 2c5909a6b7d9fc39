/** Brings VMs to life: from a checkpoint, held until released; or from an earlier daemon, as they are. */
import { randomBytes } from "node:crypto";
import type { SavedVm, Vm, Vmm, VmProcess } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { Priority, StartScheduler } from "../capacity/start-scheduler.ts";
import { unlessAborted, withDeadline } from "../deadline.ts";
import { type CapsuleFile, forgetVm, type VmFile, writeVm } from "../disk/capsule-folder.ts";
import type { Paths } from "../disk/paths.ts";
import { LiveGuest, type ReconnectOptions } from "../guest.ts";
import { identityOf } from "../identity.ts";
import type { TemplateStore } from "../images/template-store.ts";
import type { Step } from "../steps.ts";
import type { WarmProcesses } from "../warm/warm-processes.ts";

export interface LauncherOptions extends ReconnectOptions {
  paths: Paths;
  vmm: Vmm;
  /** Deadline of an agent's first answer after a restore. */
  wakeMs: number;
  step: Step;
}

/** Told of the process that a VM is in, before anything else is done with it. */
type OnProcess = (nonce: string, process: VmProcess) => void;

/** When a VM is wanted, and until when. */
export interface StartOptions {
  urgency?: Priority;
  signal?: AbortSignal | undefined;
}

export class Launcher {
  readonly #options: LauncherOptions;
  readonly #sources: TemplateStore;
  readonly #slots: StartScheduler;
  readonly #blanks: WarmProcesses;

  constructor(options: LauncherOptions, sources: TemplateStore, slots: StartScheduler, warmProcesses: WarmProcesses) {
    this.#options = options;
    this.#sources = sources;
    this.#slots = slots;
    this.#blanks = warmProcesses;
  }

  /**
   * Brings a checkpoint into a QEMU, for what is needed now into one that waits if there is one, and wakes the agent; the
   * user's processes stay frozen. On failure the VM is gone. When `unwanted` fires the VM is ended, and with it every wait
   * for it; rejects with its reason then.
   */
  restore(
    id: string,
    capsule: CapsuleFile,
    saved: SavedVm,
    { urgency = "now", signal }: StartOptions = {},
  ): Promise<LiveGuest> {
    const { vmm } = this.#options;
    return this.#slots.run(
      async () => {
        let end = () => {};
        const onProcess: OnProcess = (nonce, process) => {
          end = () => void vmm.reap(nonce, process).catch(() => {}); // whoever waits for it ends it again
          if (signal?.aborted) end();
        };
        const onAbort = () => end();
        signal?.addEventListener("abort", onAbort);
        try {
          signal?.throwIfAborted();
          return await this.#wake(id, capsule, saved, { urgency, signal }, onProcess);
        } catch (error) {
          throw signal?.aborted ? signal.reason : error;
        } finally {
          signal?.removeEventListener("abort", onAbort);
        }
      },
      urgency,
      signal,
    );
  }

  async #wake(
    id: string,
    capsule: CapsuleFile,
    saved: SavedVm,
    { urgency, signal }: StartOptions,
    onProcess: OnProcess,
  ): Promise<LiveGuest> {
    const { paths, connect, wakeMs, step } = this.#options;
    let vm: Vm | undefined;
    try {
      if (urgency === "now") vm = await this.#blanks.claim(id, capsule, saved, { onProcess, signal });
      signal?.throwIfAborted();
      vm ??= await this.#restore(id, capsule, saved, onProcess);
      step("restore.loaded");
      await vm.resume();
      const agent = await connect(vm.agentSocket, wakeMs, signal);
      await withDeadline(wakeMs, `waking capsule ${id}`, agent.wake(identityOf(id)));
      step("restore.awake");
      return new LiveGuest(id, capsule, vm, agent, this.#options);
    } catch (error) {
      await vm?.kill();
      await forgetVm(paths.capsule(id));
      throw error;
    }
  }

  async #restore(id: string, capsule: CapsuleFile, saved: SavedVm, onProcess: OnProcess): Promise<Vm> {
    const { paths, vmm, step } = this.#options;
    const folder = paths.capsule(id);
    const nonce = randomBytes(16).toString("hex");
    await writeVm(folder, { nonce, process: null });
    step("restore.journalled");
    let journalled: Promise<void> | undefined;
    const vm = await vmm.restore(this.#sources.spec(id, capsule, { nonce }), saved, (process) => {
      journalled = writeVm(folder, { nonce, process });
      journalled.catch(() => {});
      onProcess(nonce, process);
    });
    await journalled;
    return vm;
  }

  /** A guest that rests, of its own again: its CPUs run, and it has this moment's time and new randomness. */
  async unpark(guest: LiveGuest, signal?: AbortSignal): Promise<void> {
    const { wakeMs, step } = this.#options;
    await this.#slots.runUnslotted(() =>
      withDeadline(wakeMs, `rousing capsule ${guest.id}`, unlessAborted(signal, guest.unpark(identityOf(guest.id)))),
    );
    step("pool.unparked");
  }

  /**
   * A VM that an earlier daemon started; its CPUs run again if they were stopped. Undefined when the guest powered itself
   * off. Throws when the process is not the VM, the guest ended in another way, or its agent does not answer.
   */
  adopt(id: string, capsule: CapsuleFile, journal: VmFile, process: VmProcess): Promise<LiveGuest | undefined> {
    const { vmm, connect, wakeMs } = this.#options;
    const spec = this.#sources.spec(id, capsule, journal);
    return this.#slots.run(async () => {
      const vm = await vmm.adopt(spec, process);
      try {
        const state = await vm.state();
        if (state === "shutdown") return await this.#bury(id, vm);
        if (state === "stopped") await vm.resume();
        const agent = await connect(vm.agentSocket, wakeMs);
        // Its clock stood still with it.
        if (!agent.awake) await withDeadline(wakeMs, `waking capsule ${id}`, agent.wake(identityOf(id)));
        return new LiveGuest(id, capsule, vm, agent, this.#options);
      } catch (error) {
        await vm.kill();
        throw error;
      }
    });
  }

  async #bury(id: string, vm: Vm): Promise<undefined> {
    const { kind } = await vm.ended;
    if (kind !== "powered_off") throw new CapsuleError("agent_error", `the guest of capsule ${id} has ended: ${kind}`);
    await vm.kill();
    await forgetVm(vm.spec.files.dir);
  }
}
