/**
 * A capsule's live VM together with the connection to its agent. Watches both: a lost connection is made anew for a
 * while; an agent that breaks the protocol, stays away, or greets and then says nothing is the end of the guest.
 */
import { setTimeout as delay } from "node:timers/promises";
import type { Agent, Wake } from "../agent/agent.ts";
import { SilenceError } from "../agent/liveness.ts";
import { ProtocolError } from "../agent/records.ts";
import type { Vm, VmEnd } from "../vmm/vmm.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { CapsuleFile } from "./disk/capsule-folder.ts";
import type { Guest, GuestEnd } from "./host.ts";

const diskPollMs = 1_000;

export type Connect = (socketPath: string, deadlineMs: number, signal?: AbortSignal) => Promise<Agent>;

export interface ReconnectOptions {
  connect: Connect;
  /** How long a lost connection is tried anew before the guest counts as lost. */
  reconnectMs: number;
}

export class LiveGuest implements Guest {
  readonly id: string;
  readonly vm: Vm;
  /** What its folder says of it; null: it has none, and is never saved. */
  readonly capsule: CapsuleFile | null;
  readonly ended: Promise<GuestEnd>;
  /** In its folder: one that it was resumed from, or that a save of it made. */
  mayHaveCheckpoint = true;
  #agent: Agent;
  #isConnected = true;
  /** The host has stopped or let go of the guest: what happens to it now is no end by itself. */
  #isExpectingSilence = false;
  #isThawed = false;
  #reconnects = 0;
  /** Why it is never listened to again. */
  #disconnected: CapsuleError | undefined;
  /** It was hung up on for its silence, and has answered nothing since but the greeting. */
  #isUnresponsive = false;
  #reconnecting = new AbortController();
  #vmEnd: VmEnd | undefined;
  readonly #end: (end: GuestEnd) => void;
  readonly #connect: Connect;
  readonly #reconnectMs: number;

  constructor(
    id: string,
    capsule: CapsuleFile | null,
    vm: Vm,
    agent: Agent,
    { connect, reconnectMs }: ReconnectOptions,
  ) {
    this.id = id;
    this.capsule = capsule;
    this.vm = vm;
    this.#agent = agent;
    this.#connect = connect;
    this.#reconnectMs = reconnectMs;
    const { promise, resolve } = Promise.withResolvers<GuestEnd>();
    this.ended = promise;
    this.#end = resolve;
    void vm.ended.then((end) => {
      this.#vmEnd = end;
      this.#reportVmEnd();
    });
    this.#watch(agent);
  }

  get agent(): Agent {
    if (!this.#isConnected) throw new CapsuleError("agent_error", `the agent of capsule ${this.id} cannot be reached`);
    return this.#agent;
  }

  /** How often the connection was made anew; a guest that was asleep meanwhile may have been thawed then. */
  get reconnects(): number {
    return this.#reconnects;
  }

  /** From here on the host is ending or freezing the guest itself; a broken connection means nothing. */
  suspendMonitoring(): void {
    this.#isExpectingSilence = true;
    this.#reconnecting.abort();
  }

  /** Lets the user's processes run. */
  async thaw(): Promise<void> {
    this.#isThawed = true;
    await this.agent.thaw();
  }

  /** Puts the guest to sleep and stops its CPUs; nothing of it is saved. */
  async park(): Promise<void> {
    this.#isThawed = false;
    await this.agent.freeze();
    this.suspendMonitoring();
    await this.vm.stop();
  }

  /** From rest: its CPUs run and it is awake as whom `wake` says. Its processes sleep on. */
  async unpark(wake: Wake): Promise<void> {
    const listening = this.resumeMonitoring().then(() => this.agent.wake(wake));
    await Promise.all([this.vm.resume(), listening]);
  }

  /** True when the VM stands still and it was not us: the host's disk has no room for what the guest writes. */
  async isWaitingForDisk(): Promise<boolean> {
    return (await this.vm.state().catch(() => undefined)) === "stopped";
  }

  /** Takes `expectSilence` back; remakes the connection if it was lost meanwhile, and tells of a VM that ended meanwhile. */
  async resumeMonitoring(): Promise<void> {
    if (this.#disconnected !== undefined) throw this.#disconnected;
    this.#isExpectingSilence = false;
    if (this.#vmEnd !== undefined) this.#reportVmEnd();
    else if (!this.#isConnected) await this.#reconnect();
  }

  /** Gives the guest up, for the reason that its VM has ended by itself if it has. */
  markLost(reason: string): void {
    if (this.#disconnected !== undefined) return;
    if (this.#vmEnd !== undefined) this.#isExpectingSilence = false;
    this.#reportVmEnd();
    this.suspendMonitoring();
    this.#end({ kind: "lost", reason });
  }

  /** Hangs up; every call in flight rejects with `reason`. */
  disconnect(reason?: Error): void {
    this.suspendMonitoring();
    this.#agent.close(reason);
  }

  /** It will be ended in any case: nobody waits for it any longer. */
  abandon(): void {
    this.#disconnected = new CapsuleError("agent_error", `capsule ${this.id} is being destroyed`);
    this.disconnect(this.#disconnected);
  }

  /** Lets go of connection and VM; both live on. */
  close(): void {
    this.#disconnected ??= new CapsuleError("agent_error", `capsule ${this.id} was let go of`);
    this.disconnect();
    this.vm.release();
  }

  #watch(agent: Agent): void {
    void agent.closed.then((reason) => {
      if (this.#agent !== agent) return;
      this.#isConnected = false;
      if (this.#isExpectingSilence) return;
      if (reason.cause instanceof ProtocolError)
        this.#end({ kind: "lost", reason: `the agent broke the protocol: ${reason.message}` });
      else void this.#listenFor(reason);
    });
  }

  /** One more chance after a silence: a new connection brings both sides into step, whatever was lost between them. */
  async #listenFor(reason: Error): Promise<void> {
    const isSilence = reason.cause instanceof SilenceError;
    if (isSilence && this.#isUnresponsive && !(await this.isWaitingForDisk())) {
      this.#end({ kind: "lost", reason: "the agent stopped answering: it greets, and then says nothing" });
      return;
    }
    this.#isUnresponsive ||= isSilence;
    await this.#reconnect();
  }

  async #reconnect(): Promise<void> {
    this.#reconnecting = new AbortController();
    const { signal } = this.#reconnecting;
    for (;;) {
      try {
        const agent = await this.#connect(this.vm.agentSocket, this.#reconnectMs, signal);
        return signal.aborted ? agent.close() : this.#goOn(agent);
      } catch (error) {
        if (signal.aborted) return;
        if (await this.isWaitingForDisk()) await delay(diskPollMs);
        else return this.#end({ kind: "lost", reason: `the agent stopped answering: ${messageOf(error)}` });
      }
    }
  }

  #goOn(agent: Agent): void {
    this.#agent = agent;
    this.#reconnects++;
    this.#isConnected = true;
    this.#watch(agent);
    if (this.#isUnresponsive) this.#expectAnswer(agent);
    // The THAW that was on its way when the old connection broke is lost with it.
    if (this.#isThawed && !agent.awake) agent.thaw().catch(() => {});
  }

  #expectAnswer(agent: Agent): void {
    const answered = () => {
      this.#isUnresponsive = false;
    };
    agent.probe().then(answered, () => {});
  }

  #reportVmEnd(): void {
    if (this.#isExpectingSilence || this.#vmEnd === undefined) return;
    this.disconnect();
    const { kind } = this.#vmEnd;
    if (kind === "powered_off") this.#end({ kind, reason: "the guest powered itself off" });
    else if (kind === "reset") this.#end({ kind: "lost", reason: "the guest reset itself or its kernel panicked" });
    else if (kind === "overused")
      this.#end({ kind: "lost", reason: `the VM took more than its share of ${this.#vmEnd.what}` });
    else this.#end({ kind: "lost", reason: "the VM's process ended" });
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
