/** Starts guests: from a checkpoint, with the user's processes frozen until released; or from an earlier daemon, as they are. */
import { setTimeout as delay } from "node:timers/promises";
import { describeMismatch, protocolVersions, speaks, unrecordedProtocol } from "../../agent/protocol.ts";
import { newNonce } from "../../vmm/process.ts";
import type { SavedVm, Vm, Vmm, VmProcess } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { FairSlots } from "../capacity/fair-slots.ts";
import type { StartScheduler } from "../capacity/start-scheduler.ts";
import { withDeadline } from "../deadline.ts";
import { type CapsuleFile, markStopped, removeVm, type VmFile, writeVm } from "../disk/capsule-folder.ts";
import type { Paths } from "../disk/paths.ts";
import { type Connect, identityOf, LiveGuest } from "../guest.ts";
import type { Turn } from "../host.ts";
import type { TemplateStore } from "../images/template-store.ts";
import type { Step } from "../steps.ts";
import { Halted, type HaltKind, isHalt } from "./halted.ts";
import { startJournalled } from "./journalled-start.ts";

/** Boots end in seconds, unless the host is overloaded or a guest does not let them. */
const bootSlotMs = 15_000;

export interface LauncherOptions {
  paths: Paths;
  vmm: Vmm;
  connect: Connect;
  templates: TemplateStore;
  scheduler: StartScheduler;
  /** Deadline of an agent's first answer, after a restore and on a connection that is made anew. */
  wakeMs: number;
  /** Deadline of a boot, kernel to agent. */
  bootMs: number;
  /** Longest silence of a guest that runs. An adopted guest may have been busy when the server was started. */
  silenceMs: number;
  step: Step;
}

export interface SavedGuest extends SavedVm {
  /** The version of the agent protocol that the saved agent speaks. */
  protocol: number;
  /** The revision of a paused capsule's checkpoint, for the VM's journal. */
  revision?: number | null;
}

/** QEMU processes that were started ahead of time. */
export interface ProcessSource {
  /**
   * The saved VM of a capsule, loaded and stopped, in such a process, and journalled in the capsule's folder. Undefined when
   * there is none, or when it failed: then nothing is left of it.
   */
  claimProcess(id: string, capsule: CapsuleFile, saved: SavedGuest, signal?: AbortSignal): Promise<Vm | undefined>;
}

/** A VM whose CPUs run and whose agent is waited for. */
interface Waking {
  id: string;
  vm: Vm;
}

export class Launcher {
  readonly #waking = new Set<Waking>();
  readonly #options: LauncherOptions;
  readonly #processes: ProcessSource | undefined;

  /** Without `processes`, each VM gets a new process. */
  constructor(options: LauncherOptions, processes?: ProcessSource) {
    this.#options = options;
    this.#processes = processes;
  }

  /** The VMs whose agent is waited for, of restores and adoptions: they take memory as any other. */
  get waking(): Iterable<Waking> {
    return this.#waking;
  }

  /**
   * Restores a checkpoint when it is the owner's turn and wakes the agent; the user's processes stay frozen. The slot is given
   * back when the VM is loaded and its CPUs run: no other start waits for this agent. On failure the VM is gone, and its journal
   * may be left: the caller undoes the VM's writes before it removes the journal. When the signal fires the VM is ended, and its
   * reason is thrown.
   */
  async restore(id: string, capsule: CapsuleFile, saved: SavedGuest, turn: Turn): Promise<LiveGuest> {
    const { scheduler } = this.#options;
    const vm = await scheduler.run(turn, () => this.#load(id, capsule, saved, turn.signal));
    return scheduler.runUnslotted(() => this.#wake(id, capsule, saved.protocol, vm, turn.signal), "slottedMs");
  }

  /**
   * Boots a capsule from its disk when it is the owner's turn in `line`, and wakes the agent; otherwise as `restore`. The slot is
   * held until the agent answers, which takes a core, but no longer than `bootSlotMs`: a guest may let it wait.
   */
  async boot(
    id: string,
    capsule: CapsuleFile,
    { line, deadlineMs = this.#options.bootMs, ...turn }: Turn & { line: Pick<FairSlots, "run">; deadlineMs?: number },
  ): Promise<LiveGuest> {
    const { step } = this.#options;
    const { owner, signal, admitted } = turn;
    const load = async () => {
      admitted?.begin();
      const vm = await this.#startKernel(id, capsule, signal);
      admitted?.loaded();
      step("restore.loaded");
      const guest = this.#wake(id, capsule, protocolVersions.max, vm, signal, deadlineMs);
      await Promise.race([guest.catch(() => {}), delay(bootSlotMs, undefined, { ref: false })]);
      return { guest };
    };
    return (await line.run(owner, load, signal)).guest;
  }

  /** The same, in the background. */
  async restoreInBackground(
    id: string,
    capsule: CapsuleFile,
    saved: SavedGuest,
    signal: AbortSignal,
  ): Promise<LiveGuest> {
    const { scheduler } = this.#options;
    const vm = await scheduler.runBackground(() => this.#load(id, capsule, saved, signal), signal);
    return this.#wake(id, capsule, saved.protocol, vm, signal);
  }

  /** Resumes a parked guest, with a new identity and the current time, without waiting for a slot. */
  async unpark(guest: LiveGuest, signal?: AbortSignal): Promise<void> {
    const { scheduler, wakeMs, step } = this.#options;
    await scheduler.runUnslotted(() =>
      withDeadline(wakeMs, `waking capsule ${guest.id}`, guest.unpark(identityOf(guest.id)), signal),
    );
    step("pool.unparked");
  }

  /**
   * Connects to a VM that an earlier daemon started, and resumes its CPUs if they were stopped. When it was saved, `checkpoint` is
   * the revision of that checkpoint, and the VM's journal gets it. Takes no slot, since nothing is loaded. When the guest has
   * powered itself off or reset itself, that is the result, and the VM is gone. Throws when the process is not the VM or has ended. `reached` rejects when its agent
   * does not answer; then the VM was ended. When the signal fires, `reached` rejects with its reason, and the VM runs on.
   */
  async adopt(
    id: string,
    capsule: CapsuleFile,
    journal: VmFile & { process: VmProcess },
    { checkpoint, signal }: { checkpoint: number | null; signal: AbortSignal },
  ): Promise<{ reached: Promise<LiveGuest> } | HaltKind> {
    const { vmm, templates } = this.#options;
    const vm = await vmm.adopt(templates.spec(id, capsule, journal), journal.process);
    try {
      const state = await vm.state();
      if (state === "shutdown") return await this.#endHalted(id, vm);
      if (state === "stopped") {
        if (checkpoint !== null) await writeVm(vm.spec.files.dir, { ...journal, restores: checkpoint });
        await vm.resume();
      }
    } catch (error) {
      await vm.kill();
      throw error;
    }
    return { reached: this.#reach(id, capsule, vm, journal.protocol ?? unrecordedProtocol, signal) };
  }

  async #reach(id: string, capsule: CapsuleFile, vm: Vm, protocol: number, signal: AbortSignal): Promise<LiveGuest> {
    const { connect, wakeMs, silenceMs } = this.#options;
    using _waking = this.#enlist(id, vm);
    const alive = orEndOf(vm, signal);
    try {
      const longestMs = Math.max(wakeMs, silenceMs);
      const agent = await connect(vm.agentSocket, longestMs, alive, protocol);
      // A frozen guest's clock may be behind.
      if (!agent.awake) await withDeadline(longestMs, `waking capsule ${id}`, agent.wake(identityOf(id)), alive);
      return new LiveGuest(id, capsule, vm, agent, { connect, reconnectMs: wakeMs });
    } catch (error) {
      if (signal.aborted) vm.detach();
      else await vm.kill();
      if (signal.aborted) throw signal.reason;
      throw alive.reason instanceof Halted ? alive.reason : error;
    }
  }

  /** The saved VM; its CPUs run. */
  async #load(id: string, capsule: CapsuleFile, saved: SavedGuest, signal: AbortSignal | undefined): Promise<Vm> {
    signal?.throwIfAborted();
    requireProtocol(saved.protocol, `capsule ${id}`);
    let vm: Vm | undefined;
    try {
      // A process that was started ahead of time has its parent's machine, and may write a layer of its image's size at most.
      const hasOthers = capsule.diskBytes === undefined && capsule.hasOwnMachine !== true;
      const processes = hasOthers ? this.#processes : undefined;
      vm = await processes?.claimProcess(id, capsule, saved, signal);
      signal?.throwIfAborted();
      vm ??= await this.#start(id, capsule, saved, signal);
      this.#options.step("restore.loaded");
      await vm.resume();
      return vm;
    } catch (error) {
      await vm?.kill();
      throw signal?.aborted ? signal.reason : error;
    }
  }

  /** The guest of a VM that was just loaded, once its agent is awake. */
  async #wake(
    id: string,
    capsule: CapsuleFile,
    protocol: number,
    vm: Vm,
    signal: AbortSignal | undefined,
    connectMs = this.#options.wakeMs,
  ): Promise<LiveGuest> {
    const { connect, wakeMs, step } = this.#options;
    using _waking = this.#enlist(id, vm);
    try {
      const alive = orEndOf(vm, signal);
      const agent = await connect(vm.agentSocket, connectMs, alive, protocol);
      const problems = await withDeadline(wakeMs, `waking capsule ${id}`, agent.wake(identityOf(id)), alive);
      step("restore.awake");
      const guest = new LiveGuest(id, capsule, vm, agent, { connect, reconnectMs: wakeMs });
      guest.wakeProblems = problems;
      return guest;
    } catch (error) {
      await vm.kill();
      throw signal?.aborted ? signal.reason : error;
    }
  }

  /** Until the result is disposed of. */
  #enlist(id: string, vm: Vm): Disposable {
    const waking = { id, vm };
    this.#waking.add(waking);
    return { [Symbol.dispose]: () => void this.#waking.delete(waking) };
  }

  /** A VM whose kernel boots, in a new process. */
  #startKernel(id: string, capsule: CapsuleFile, signal: AbortSignal | undefined): Promise<Vm> {
    const { paths, vmm, templates, step } = this.#options;
    const nonce = newNonce();
    const journal = { nonce, protocol: protocolVersions.max, restores: null };
    return startJournalled(paths.capsule(id), journal, (onSpawn) => {
      step("restore.journalled");
      return vmm.boot(templates.bootSpec(id, capsule, { nonce }), onSpawn, signal);
    });
  }

  /** In a new process. */
  async #start(id: string, capsule: CapsuleFile, saved: SavedGuest, signal: AbortSignal | undefined): Promise<Vm> {
    const { paths, vmm, templates, step } = this.#options;
    const nonce = newNonce();
    const journal = { nonce, protocol: saved.protocol, restores: saved.revision ?? null };
    return startJournalled(paths.capsule(id), journal, (onSpawn) => {
      step("restore.journalled");
      return vmm.restore(templates.spec(id, capsule, { nonce }), saved, onSpawn, signal);
    });
  }

  async #endHalted(id: string, vm: Vm): Promise<HaltKind> {
    const { kind } = await vm.ended;
    if (!isHalt(kind)) {
      throw new CapsuleError("agent_error", `the guest of capsule ${id} has ended: ${kind}`);
    }
    await vm.kill();
    await markStopped(vm.spec.files.dir);
    await removeVm(vm.spec.files.dir);
    return kind;
  }
}

/** Throws CapsuleError("conflict") for a saved agent that this host cannot speak to, before anything is started. */
function requireProtocol(protocol: number, what: string): void {
  if (speaks(protocolVersions, protocol)) return;
  const mismatch = describeMismatch(protocol, protocolVersions);
  throw new CapsuleError("conflict", `${what} was saved with an agent that speaks ${mismatch}`);
}

/** `signal`, or a signal that fires when the VM ends: a wait for its agent would last until the deadline. */
function orEndOf(vm: Vm, signal: AbortSignal | undefined): AbortSignal {
  const ended = new AbortController();
  void vm.ended.then(({ kind }) => {
    ended.abort(isHalt(kind) ? new Halted(kind) : new CapsuleError("agent_error", `the VM has ended: ${kind}`));
  });
  return signal === undefined ? ended.signal : AbortSignal.any([signal, ended.signal]);
}
