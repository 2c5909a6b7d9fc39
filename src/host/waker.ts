/** Brings VMs to life: from a checkpoint, held until released; or from an earlier daemon, as they are. */
import { randomBytes } from "node:crypto";
import type { SavedVm, Vm, Vmm, VmProcess } from "../vmm/vmm.ts";
import { CapsuleError } from "../wire/errors.ts";
import { unless, within } from "./deadline.ts";
import { type Connect, LiveGuest } from "./guest.ts";
import { identityOf } from "./identity.ts";
import { type CapsuleFile, forgetVm, writeVm } from "./journal.ts";
import type { Paths } from "./paths.ts";
import type { Slots, Urgency } from "./slots.ts";
import type { Sources } from "./sources.ts";
import type { Step } from "./steps.ts";

export interface WakerOptions {
  paths: Paths;
  vmm: Vmm;
  connect: Connect;
  /** Deadline of an agent's first answer after a restore. */
  wakeMs: number;
  /** How long a lost agent connection is tried anew before the guest counts as lost. */
  reconnectMs: number;
  step: Step;
}

/** When a VM is wanted, and until when. */
export interface Wish {
  urgency?: Urgency;
  unwanted?: AbortSignal | undefined;
}

export class Waker {
  readonly #o: WakerOptions;
  readonly #sources: Sources;
  readonly #slots: Slots;

  constructor(options: WakerOptions, sources: Sources, slots: Slots) {
    this.#o = options;
    this.#sources = sources;
    this.#slots = slots;
  }

  /**
   * Starts QEMU on a checkpoint and wakes the agent; the user's processes stay frozen. On failure the VM is gone. When
   * `unwanted` fires the VM is ended, and with it every wait for it; rejects with its reason then.
   */
  wake(id: string, capsule: CapsuleFile, saved: SavedVm, { urgency, unwanted }: Wish = {}): Promise<LiveGuest> {
    const { vmm } = this.#o;
    const nonce = randomBytes(16).toString("hex");
    return this.#slots.run(
      async () => {
        let spawned: VmProcess | undefined;
        const end = () => {
          if (spawned !== undefined) vmm.reap(nonce, spawned).catch(() => {}); // whoever waits for it ends it again
        };
        unwanted?.addEventListener("abort", end);
        try {
          unwanted?.throwIfAborted();
          return await this.#wake(id, capsule, saved, { nonce, unwanted }, (process) => {
            spawned = process;
            if (unwanted?.aborted) end();
          });
        } catch (error) {
          throw unwanted?.aborted ? unwanted.reason : error;
        } finally {
          unwanted?.removeEventListener("abort", end);
        }
      },
      urgency,
      unwanted,
    );
  }

  async #wake(
    id: string,
    capsule: CapsuleFile,
    saved: SavedVm,
    { nonce, unwanted }: { nonce: string; unwanted: AbortSignal | undefined },
    onSpawn: (process: VmProcess) => void,
  ): Promise<LiveGuest> {
    const { paths, vmm, connect, wakeMs, step } = this.#o;
    const folder = paths.capsule(id);
    let vm: Vm | undefined;
    try {
      await writeVm(folder, { nonce, process: null });
      step("restore.journalled");
      let journalled: Promise<void> | undefined;
      vm = await vmm.restore(this.#sources.spec(id, capsule, nonce), saved, (process) => {
        journalled = writeVm(folder, { nonce, process });
        journalled.catch(() => {});
        onSpawn(process);
      });
      await journalled;
      step("restore.loaded");
      await vm.resume();
      const agent = await connect(vm.agentSocket, wakeMs, unwanted);
      await within(wakeMs, `waking capsule ${id}`, agent.wake(identityOf(id)));
      step("restore.awake");
      return this.#guest(id, vm, agent);
    } catch (error) {
      await vm?.kill();
      await forgetVm(folder);
      throw error;
    }
  }

  /** A guest that rests, of its own again: its CPUs run, and it has this moment's time and new randomness. */
  async rouse(guest: LiveGuest, unwanted?: AbortSignal): Promise<void> {
    const { wakeMs, step } = this.#o;
    await within(wakeMs, `rousing capsule ${guest.id}`, unless(unwanted, guest.rouse(identityOf(guest.id))));
    step("pool.roused");
  }

  /**
   * A VM that an earlier daemon started; its CPUs run again if they were stopped. Undefined when the guest powered itself
   * off. Throws when the process is not the VM, the guest ended in another way, or its agent does not answer.
   */
  adopt(id: string, capsule: CapsuleFile, nonce: string, process: VmProcess): Promise<LiveGuest | undefined> {
    const { vmm, connect, wakeMs } = this.#o;
    const spec = this.#sources.spec(id, capsule, nonce);
    return this.#slots.run(async () => {
      const vm = await vmm.adopt(spec, process);
      try {
        const state = await vm.state();
        if (state === "shutdown") return await this.#bury(id, vm);
        if (state === "stopped") await vm.resume();
        const agent = await connect(vm.agentSocket, wakeMs);
        // Its clock stood still with it.
        if (!agent.awake) await within(wakeMs, `waking capsule ${id}`, agent.wake(identityOf(id)));
        return this.#guest(id, vm, agent);
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

  #guest(id: string, vm: Vm, agent: Awaited<ReturnType<Connect>>): LiveGuest {
    return new LiveGuest(id, vm, agent, this.#o.connect, this.#o.reconnectMs);
  }
}
