/**
 * A capsule's live VM together with the connection to its agent, as a state machine:
 *
 *      connected      calls reach the agent
 *      reconnecting   the connection was lost; it is made anew, until a deadline
 *      suspended      the host is stopping the guest: a lost connection or an ended VM is not reported for now
 *      ended          the end was reported, or the host has given the guest up; final
 */
import { createHash, randomBytes } from "node:crypto";
import { setTimeout as delay } from "node:timers/promises";
import type { Agent, Wake } from "../agent/agent.ts";
import { SilenceError } from "../agent/liveness.ts";
import { ProtocolError } from "../agent/records.ts";
import { cpuMsOf } from "../vmm/process.ts";
import type { Vm, VmEnd } from "../vmm/vmm.ts";
import { CapsuleError, messageOf } from "../wire/errors.ts";
import { withDeadline } from "./deadline.ts";
import type { CapsuleFile } from "./disk/capsule-folder.ts";
import type { Guest, GuestEnd } from "./host.ts";

const diskPollMs = 1_000;
/** A VM reports the end of its process within 0.8 s; longer would delay the status beyond 1 s. */
const vmEndGraceMs = 900;
const entropyBytes = 64;
const settleMs = 20_000;

/**
 * The identity of a guest among all those that start from the same checkpoint: host name and machine id follow from the
 * capsule's id, the random bytes are new each time.
 */
export function identityOf(id: string): Wake {
  const machineId = createHash("sha256").update(`machine-id of ${id}`).digest("hex").slice(0, 32);
  return { hostname: id, machineId, entropy: randomBytes(entropyBytes) };
}

/** `protocol`: the version that the agent is known to speak. */
export type Connect = (
  socketPath: string,
  deadlineMs: number,
  signal?: AbortSignal,
  protocol?: number,
) => Promise<Agent>;

export interface ReconnectOptions {
  connect: Connect;
  /** How long a lost connection is retried before the guest counts as lost. */
  reconnectMs: number;
}

type State =
  | { name: "connected" }
  | { name: "reconnecting"; abort: AbortController; done: Promise<void> }
  | { name: "suspended" }
  | { name: "ended"; error: CapsuleError };

/** The states that may follow each state. */
const transitions: Record<State["name"], readonly State["name"][]> = {
  connected: ["reconnecting", "suspended", "ended"],
  reconnecting: ["connected", "suspended", "ended"],
  suspended: ["connected", "reconnecting", "ended"],
  ended: [],
};

export class LiveGuest implements Guest {
  readonly id: string;
  readonly vm: Vm;
  /** The content of its capsule.json. */
  readonly capsule: CapsuleFile;
  readonly ended: Promise<GuestEnd>;
  wakeProblems: readonly string[] = [];
  /** Its disk was written for a stop, so nothing runs in it any more. */
  hasSettled = false;
  #state: State = { name: "connected" };
  /** The open connection, also while suspended; undefined when it is lost. */
  #agent: Agent | undefined;
  readonly #protocol: number;
  /** Its agent can make its file system larger. */
  readonly canGrow: boolean;
  #reconnects = 0;
  /** The user's processes are to run: a new connection repeats a THAW that was lost with the old one. */
  #isThawed = false;
  /** The connection was closed for the agent's silence, and the new one has answered nothing since its handshake. */
  #isUnresponsive = false;
  #vmEnd: VmEnd | undefined;
  readonly #reportEnd: (end: GuestEnd) => void;
  readonly #connect: Connect;
  readonly #reconnectMs: number;

  constructor(id: string, capsule: CapsuleFile, vm: Vm, agent: Agent, { connect, reconnectMs }: ReconnectOptions) {
    this.id = id;
    this.capsule = capsule;
    this.vm = vm;
    this.#connect = connect;
    this.#reconnectMs = reconnectMs;
    const { promise, resolve } = Promise.withResolvers<GuestEnd>();
    this.ended = promise;
    this.#reportEnd = resolve;
    void vm.ended.then((end) => {
      this.#vmEnd = end;
      if (this.#state.name !== "suspended") this.#endWithVm(end);
    });
    this.#protocol = agent.protocol;
    this.canGrow = agent.canGrow;
    this.#use(agent);
  }

  get agent(): Agent {
    if (this.#agent === undefined)
      throw new CapsuleError("agent_error", `the agent of capsule ${this.id} cannot be reached`);
    return this.#agent;
  }

  get networkSocket(): string | null {
    return this.vm.networkSocket;
  }

  /** The version of the protocol that its agent speaks. */
  get protocol(): number {
    return this.#protocol;
  }

  limitWrites(bytesPerSec: number): Promise<void> {
    return this.vm.limitWrites(bytesPerSec);
  }

  cpuMs(): number | undefined {
    return cpuMsOf(this.vm.process);
  }

  /** How often the connection was made anew. A frozen guest may have been thawed each time. */
  get reconnects(): number {
    return this.#reconnects;
  }

  /** From here on the host is stopping or ending the guest: neither a lost connection nor the VM's end is reported. */
  suspendMonitoring(): void {
    this.#enter({ name: "suspended" });
  }

  /** Undoes `suspendMonitoring`: reconnects if the connection was lost meanwhile, and reports a VM that ended meanwhile. */
  async resumeMonitoring(): Promise<void> {
    const state = this.#state;
    switch (state.name) {
      case "ended":
        throw state.error;
      case "reconnecting":
        return await state.done;
      case "connected":
        return;
      case "suspended":
        if (this.#vmEnd !== undefined) this.#endWithVm(this.#vmEnd);
        else if (this.#agent !== undefined) this.#enter({ name: "connected" });
        else await this.#reconnect();
    }
  }

  /** Lets the user's processes run. */
  async thaw(): Promise<void> {
    this.#isThawed = true;
    await this.agent.thaw();
  }

  /** Freezes the user's processes and stops the CPUs; nothing is saved. */
  async park(): Promise<void> {
    this.#isThawed = false;
    await this.agent.freeze();
    this.suspendMonitoring();
    await this.vm.stop();
  }

  /** Resumes the CPUs of a parked guest and gives it the identity in `wake`. The user's processes stay frozen. */
  async unpark(wake: Wake): Promise<void> {
    const waking = this.resumeMonitoring().then(() => this.agent.wake(wake));
    [, this.wakeProblems] = await Promise.all([this.vm.resume(), waking]);
  }

  /** Whether QEMU has stopped the VM by itself, because the host's disk has no space for the guest's writes. */
  async isWaitingForDisk(): Promise<boolean> {
    return (await this.vm.state().catch(() => undefined)) === "stopped";
  }

  /** Reports the guest as lost, or as ended with its VM if that has ended by itself. */
  markLost(reason: string): void {
    if (this.#vmEnd !== undefined) this.#endWithVm(this.#vmEnd);
    else this.#end({ kind: "lost", reason });
  }

  /** Makes QEMU write to the host's disk what the guest has written to its own. Call when the guest has ended, or is to be ended. */
  async settleDisk(): Promise<void> {
    this.hasSettled = true;
    await withDeadline(settleMs, `writing the disk of capsule ${this.id}`, this.vm.stop()).catch(() => {}); // as a power cut, then
  }

  /** Whether it has powered itself off or reset itself. QEMU is still there. */
  get hasHalted(): boolean {
    return this.#vmEnd?.kind === "powered_off" || this.#vmEnd?.kind === "reset";
  }

  /** Closes the connection for good; calls in flight reject with `reason`. This is not reported as an end. */
  disconnect(reason?: CapsuleError): void {
    this.#enter({ name: "ended", error: reason ?? this.#error("is no longer connected") });
    this.#agent?.close(reason);
  }

  /** Closes the connection of a guest that will be destroyed, so that nothing waits for its agent. */
  abandon(): void {
    this.disconnect(this.#error("is being destroyed"));
  }

  /** Closes the connection and the sockets of the VM, which runs on. */
  close(): void {
    this.#enter({ name: "ended", error: this.#error("was released by this daemon") });
    this.#agent?.close();
    this.vm.detach();
  }

  /** Changes the state, and ends an attempt to reconnect. False, without effect, where the table does not allow it. */
  #enter(state: State): boolean {
    if (!transitions[this.#state.name].includes(state.name)) return false;
    if (this.#state.name === "reconnecting" && state.name !== "connected") this.#state.abort.abort();
    this.#state = state;
    return true;
  }

  /** Watches a new connection. */
  #use(agent: Agent): void {
    this.#agent = agent;
    void agent.closed.then((reason) => {
      if (this.#agent !== agent) return;
      this.#agent = undefined;
      if (this.#state.name === "connected") this.#onLost(reason);
    });
  }

  #onLost({ cause, message }: Error): void {
    const isSilence = cause instanceof SilenceError;
    const isSecondSilence = isSilence && this.#isUnresponsive;
    this.#isUnresponsive ||= isSilence;
    if (cause instanceof ProtocolError) this.#end({ kind: "lost", reason: `the agent broke the protocol: ${message}` });
    else void this.#reconnect(isSecondSilence);
  }

  /** A second silence without an answer in between is final, unless the VM waits for the disk. */
  #reconnect(isSecondSilence = false): Promise<void> {
    const abort = new AbortController();
    const { promise: done, resolve } = Promise.withResolvers<void>();
    if (this.#enter({ name: "reconnecting", abort, done })) {
      void this.#tryToConnect(abort.signal, isSecondSilence).finally(resolve);
    } else resolve();
    return done;
  }

  async #tryToConnect(signal: AbortSignal, isSecondSilence: boolean): Promise<void> {
    if (isSecondSilence && !(await this.isWaitingForDisk())) {
      if (signal.aborted) return;
      return this.#end({ kind: "lost", reason: "the agent stopped answering: it greets, and then says nothing" });
    }
    while (!signal.aborted) {
      try {
        const agent = await this.#connect(this.vm.agentSocket, this.#reconnectMs, signal, this.#protocol);
        return signal.aborted ? agent.close() : this.#onReconnected(agent);
      } catch (error) {
        if (signal.aborted) return;
        const isWaiting = await this.isWaitingForDisk();
        if (signal.aborted) return;
        if (!isWaiting) return await this.#giveUp(error, signal);
        await delay(diskPollMs);
      }
    }
  }

  /** A QEMU that was killed closes the agent's socket first. Its end is the reason then, once the VM reports it. */
  async #giveUp(error: unknown, signal: AbortSignal): Promise<void> {
    await Promise.race([this.vm.ended, delay(vmEndGraceMs, undefined, { ref: false })]);
    if (!signal.aborted) this.markLost(`the agent stopped answering: ${messageOf(error)}`);
  }

  #onReconnected(agent: Agent): void {
    this.#enter({ name: "connected" });
    this.#reconnects++;
    this.#use(agent);
    if (this.#isUnresponsive) {
      const onAnswer = () => {
        this.#isUnresponsive = false;
      };
      agent.probe().then(onAnswer, () => {});
    }
    if (this.#isThawed && !agent.awake) agent.thaw().catch(() => {});
  }

  #endWithVm(end: VmEnd): void {
    const [kind, reason] = describeEnd(end);
    this.#end({ kind, reason });
    this.#agent?.close();
  }

  #end(end: GuestEnd): void {
    const error = this.#error(`has ended: ${end.reason}`);
    if (this.#enter({ name: "ended", error })) this.#reportEnd(end);
  }

  #error(what: string): CapsuleError {
    return new CapsuleError("agent_error", `capsule ${this.id} ${what}`);
  }
}

function describeEnd(end: VmEnd): [kind: GuestEnd["kind"], reason: string] {
  switch (end.kind) {
    case "powered_off":
      return ["powered_off", "the guest powered itself off"];
    case "reset":
      return ["reset", "the guest reset itself or its kernel panicked"];
    case "overused":
      return ["lost", `the VM took more than its share of ${end.what}`];
    case "exited":
      return ["lost", "the VM's process ended"];
  }
}
