/**
 * A capsule's live VM together with the connection to its agent. Watches both: a lost connection is made anew for a
 * while; an agent that breaks the protocol, or stays away, is the end of the guest.
 */
import type { Agent } from "../agent/agent.ts";
import { ProtocolError } from "../agent/records.ts";
import type { Vm, VmEnd } from "../vmm/vmm.ts";
import { CapsuleError } from "../wire/errors.ts";
import type { Guest, GuestEnd } from "./host.ts";

export type Connect = (socketPath: string, deadlineMs: number, signal?: AbortSignal) => Promise<Agent>;

export class LiveGuest implements Guest {
  readonly id: string;
  readonly vm: Vm;
  readonly ended: Promise<GuestEnd>;
  #agent: Agent;
  #isConnected = true;
  /** The host has stopped or let go of the guest: what happens to it now is no end by itself. */
  #isExpectingSilence = false;
  #vmEnd: VmEnd | undefined;
  readonly #end: (end: GuestEnd) => void;
  readonly #connect: Connect;
  readonly #reconnectMs: number;

  constructor(id: string, vm: Vm, agent: Agent, connect: Connect, reconnectMs: number) {
    this.id = id;
    this.vm = vm;
    this.#agent = agent;
    this.#connect = connect;
    this.#reconnectMs = reconnectMs;
    const { promise, resolve } = Promise.withResolvers<GuestEnd>();
    this.ended = promise;
    this.#end = resolve;
    void vm.ended.then((end) => {
      this.#vmEnd = end;
      this.#tellVmEnd();
    });
    this.#watch(agent);
  }

  get agent(): Agent {
    if (!this.#isConnected) throw new CapsuleError("agent_error", `the agent of capsule ${this.id} cannot be reached`);
    return this.#agent;
  }

  /** From here on the host is ending or freezing the guest itself; a broken connection means nothing. */
  expectSilence(): void {
    this.#isExpectingSilence = true;
  }

  /** Takes `expectSilence` back; remakes the connection if it was lost meanwhile, and tells of a VM that ended meanwhile. */
  async listenAgain(): Promise<void> {
    this.#isExpectingSilence = false;
    if (this.#vmEnd !== undefined) this.#tellVmEnd();
    else if (!this.#isConnected) await this.#reconnect();
  }

  /** Gives the guest up. */
  lose(reason: string): void {
    this.#isExpectingSilence = true;
    this.#end({ kind: "lost", reason });
  }

  /** Hangs up; every call in flight rejects with `reason`. */
  hangUp(reason?: Error): void {
    this.#isExpectingSilence = true;
    this.#agent.close(reason);
  }

  /** Lets go of connection and VM; both live on. */
  close(): void {
    this.hangUp();
    this.vm.release();
  }

  #watch(agent: Agent): void {
    void agent.closed.then((reason) => {
      if (this.#agent !== agent) return;
      this.#isConnected = false;
      if (this.#isExpectingSilence) return;
      if (reason.cause instanceof ProtocolError)
        this.#end({ kind: "lost", reason: `the agent broke the protocol: ${reason.message}` });
      else void this.#reconnect();
    });
  }

  async #reconnect(): Promise<void> {
    try {
      const agent = await this.#connect(this.vm.agentSocket, this.#reconnectMs);
      if (this.#isExpectingSilence) return agent.close();
      this.#agent = agent;
      this.#isConnected = true;
      this.#watch(agent);
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      if (!this.#isExpectingSilence) this.#end({ kind: "lost", reason: `the agent stopped answering: ${why}` });
    }
  }

  #tellVmEnd(): void {
    if (this.#isExpectingSilence || this.#vmEnd === undefined) return;
    this.hangUp();
    const { kind } = this.#vmEnd;
    if (kind === "powered_off") this.#end({ kind, reason: "the guest powered itself off" });
    else if (kind === "reset") this.#end({ kind: "lost", reason: "the guest reset itself or its kernel panicked" });
    else this.#end({ kind: "lost", reason: "the VM's process ended" });
  }
}
