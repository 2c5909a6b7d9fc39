/** What the benchmarks measure on: a service without a pool, the machine below it, and gVisor beside it if it is here. */
import { connectAgent } from "../src/agent/connection.ts";
import { loadConfig } from "../src/config.ts";
import { Paths } from "../src/host/disk/paths.ts";
import { openMachine, type ThisMachine } from "../src/host/machine.ts";
import { Qemu } from "../src/vmm/qemu.ts";
import type { Run } from "./public-format.ts";
import type { Report } from "./report.ts";
import { openRunsc, type Runsc } from "./runsc.ts";
import { Service } from "./service.ts";

export interface RigOptions {
  /** More samples, and what takes minutes. */
  isLong: boolean;
  report: Report;
}

export class Rig implements AsyncDisposable {
  readonly isLong: boolean;
  readonly report: Report;
  /** Every create and resume starts a process: nothing was prepared, and nothing is prepared in the background. */
  readonly service: Service;
  /** What the yardsticks run on. */
  readonly machine: ThisMachine;
  /** Runs whose samples are told one by one. */
  readonly runs: Run[] = [];
  #runsc: Promise<Runsc | string> | undefined;
  #expectant: Promise<Service> | undefined;

  static async start(options: RigOptions): Promise<Rig> {
    const service = await Service.start({ CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" });
    try {
      return new Rig(options, service, await plainMachine(service.dataDir));
    } catch (error) {
      await service[Symbol.asyncDispose]();
      throw error;
    }
  }

  private constructor({ isLong, report }: RigOptions, service: Service, machine: ThisMachine) {
    this.isLong = isLong;
    this.report = report;
    this.service = service;
    this.machine = machine;
  }

  /** How many samples: the first number, or the second in a long run. */
  rounds(quick: number, long: number): number {
    return this.isLong ? long : quick;
  }

  /** A server without a pool, that starts processes ahead of time as it does by default. */
  expectant(): Promise<Service> {
    this.#expectant ??= Service.start({ CAPSULE_POOL: "off" });
    return this.#expectant;
  }

  /** gVisor's runtime, or why it cannot be compared with. */
  runsc(): Promise<Runsc | string> {
    this.#runsc ??= openRunsc(this.machine.accelerator.kind);
    return this.#runsc;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const runsc = await this.#runsc;
    if (typeof runsc === "object") await runsc[Symbol.asyncDispose]();
    await (await this.#expectant)?.[Symbol.asyncDispose]();
    await this.service[Symbol.asyncDispose]();
  }
}

export function connect(socketPath: string, deadlineMs: number, signal?: AbortSignal) {
  return connectAgent(socketPath, { deadlineMs, signal });
}

/** With the accelerator that the server has chosen, and without its jail: a yardstick has no walls to pay for. */
async function plainMachine(dataDir: string): Promise<ThisMachine> {
  const { qemu, jail, jailUids: uids } = loadConfig();
  const paths = new Paths(dataDir);
  const asServed = { paths, qemu, wanted: "auto", jail: jail === "off" ? null : { uids }, connect } as const;
  const machine = await openMachine({ ...asServed, progress() {} });
  const { accelerator, vmm } = machine;
  const version = vmm.machine(1, 512).qemu;
  return { ...machine, jail: undefined, vmm: new Qemu({ program: qemu, version, accelerator }) };
}
