/** A VM without a process: its guest is a socket, its state and its end are what a test says. */
import type { AroundSave, SaveResult, Vm, VmEnd, VmProcess, VmSpec, VmState } from "../../src/vmm/vmm.ts";

export class FakeVm implements Vm {
  readonly spec: VmSpec;
  readonly process: VmProcess = { pid: 2 ** 22 + 1, startTicks: 1 }; // beyond the kernel's largest pid
  readonly agentSocket: string;
  readonly ended: Promise<VmEnd>;
  readonly endWith: (end: VmEnd) => void;
  /** Asked for by `state`; an Error is thrown. */
  found: VmState | Error = "running";
  isReleased = false;

  constructor(agentSocket: string) {
    this.agentSocket = agentSocket;
    const { promise, resolve } = Promise.withResolvers<VmEnd>();
    this.ended = promise;
    this.endWith = resolve;
    const machine = { qemu: "10.0.0", accelerator: "tcg", cpu: "max", layout: 1, vcpus: 1, memoryMb: 128 } as const;
    const files = { dir: "/nowhere", memory: "", disk: "", backing: [], kernel: "", initrd: "" };
    this.spec = { name: "fake", nonce: "0", machine, files };
  }

  async stop(): Promise<void> {
    this.found = "stopped";
  }

  async resume(): Promise<void> {
    this.found = "running";
  }

  async state(): Promise<VmState> {
    if (this.found instanceof Error) throw this.found;
    return this.found;
  }

  async save(_to: unknown, { calm, stopped, meanwhile, seal }: AroundSave = {}): Promise<SaveResult> {
    await calm?.();
    await this.stop();
    stopped?.();
    await meanwhile?.();
    await seal?.({ bytes: 0, whole: Promise.resolve() });
    return { stateBytes: 0, memoryBytes: 0, pages: 0 };
  }

  async kill(): Promise<void> {
    this.release();
  }

  async console(): Promise<string> {
    return "";
  }

  release(): void {
    this.isReleased = true;
  }
}
