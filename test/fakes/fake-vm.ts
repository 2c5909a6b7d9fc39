/** A VM without a process: its guest is a socket, a test sets its state and its end, and saves write two short files. */
import { writeFileSync } from "node:fs";
import type { Vm, VmEnd, VmProcess, VmSave, VmSpec, VmState } from "../../src/vmm/vmm.ts";

const [devices, pages] = ["devices", "pages"];

export class FakeVm implements Vm {
  readonly spec: VmSpec;
  readonly process: VmProcess = { pid: 2 ** 22 + 1, startTicks: 1 }; // beyond the kernel's largest pid
  readonly agentSocket: string;
  networkSocket: string | null = null;
  readonly ended: Promise<VmEnd>;
  readonly endWith: (end: VmEnd) => void;
  /** Returned by `state`; an Error is thrown. */
  found: VmState | Error = "running";
  isDetached = false;
  writesPerSec = 0;
  /** How many attempts of a save find that the devices have changed. */
  inconsistent = 0;

  constructor(agentSocket: string) {
    this.agentSocket = agentSocket;
    const { promise, resolve } = Promise.withResolvers<VmEnd>();
    this.ended = promise;
    this.endWith = resolve;
    const machine = {
      qemu: "10.0.0",
      accelerator: "tcg",
      cpu: "max",
      devices: ["ports:1"],
      vcpus: 1,
      memoryMb: 128,
    } as const;
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

  async limitWrites(bytesPerSec: number): Promise<void> {
    this.writesPerSec = bytesPerSec;
  }

  /** Sizes to which its disk was made larger. */
  readonly grown: number[] = [];

  async growDisk(sizeBytes: number): Promise<void> {
    this.grown.push(sizeBytes);
  }

  openSave(to: { state: string; memory: string }): VmSave {
    return {
      prepare: async () => {},
      stopCpus: () => this.stop(),
      copyMemory: async () => {
        writeFileSync(to.state, devices);
        return { stateBytes: devices.length, memoryBytes: pages.length, pages: 1 };
      },
      finish: async () => writeFileSync(to.memory, pages),
      isConsistent: async () => this.inconsistent-- <= 0,
      [Symbol.asyncDispose]: async () => {},
    };
  }

  async kill(): Promise<void> {
    this.detach();
  }

  async console(): Promise<string> {
    return "";
  }

  detach(): void {
    this.isDetached = true;
  }
}
