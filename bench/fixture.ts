/** The parts that the benchmarks share: a service without a pool, the machine it runs on, and gVisor where it is installed. */
import { connectAgent } from "../src/agent/connection.ts";
import { loadConfig } from "../src/config.ts";
import { Paths } from "../src/host/disk/paths.ts";
import { openMachine, type ThisMachine } from "../src/host/machine.ts";
import { QemuVmms } from "../src/host/qemu-builds/vmms.ts";
import type { Run } from "./public-format.ts";
import type { Report } from "./report.ts";
import { openRunsc, type Runsc } from "./runsc.ts";
import { Service } from "./service.ts";

export interface FixtureOptions {
  /** More samples, and the figures that take minutes. */
  isLong: boolean;
  report: Report;
}

export class Fixture implements AsyncDisposable {
  readonly isLong: boolean;
  readonly report: Report;
  /** A server that prepares nothing: every create and resume starts a QEMU. */
  readonly service: Service;
  /** The machine for baselines. */
  readonly machine: ThisMachine;
  /** Runs that are reported sample by sample. */
  readonly runs: Run[] = [];
  #runsc: Promise<Runsc | string> | undefined;
  #warmService: Promise<Service> | undefined;

  static async start(options: FixtureOptions): Promise<Fixture> {
    const service = await Service.start({ CAPSULE_POOL: "off", CAPSULE_WARM_PROCESSES: "0" });
    try {
      return new Fixture(options, service, await plainMachine(service.dataDir));
    } catch (error) {
      await service[Symbol.asyncDispose]();
      throw error;
    }
  }

  private constructor({ isLong, report }: FixtureOptions, service: Service, machine: ThisMachine) {
    this.isLong = isLong;
    this.report = report;
    this.service = service;
    this.machine = machine;
  }

  /** The number of samples: `quick`, or `long` in a long run. */
  rounds(quick: number, long: number): number {
    return this.isLong ? long : quick;
  }

  /** A server without a pool, with warm processes as by default. */
  warmService(): Promise<Service> {
    this.#warmService ??= Service.start({ CAPSULE_POOL: "off" });
    return this.#warmService;
  }

  /** gVisor's runtime, or a sentence that says why it cannot run here. */
  runsc(): Promise<Runsc | string> {
    this.#runsc ??= openRunsc(this.machine.accelerator.kind);
    return this.#runsc;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const runsc = await this.#runsc;
    if (typeof runsc === "object") await runsc[Symbol.asyncDispose]();
    await (await this.#warmService)?.[Symbol.asyncDispose]();
    await this.service[Symbol.asyncDispose]();
  }
}

export function connect(socketPath: string, deadlineMs: number, signal?: AbortSignal) {
  return connectAgent(socketPath, { deadlineMs, signal });
}

/** The server's accelerator without its jail, whose cost is not part of a baseline. */
async function plainMachine(dataDir: string): Promise<ThisMachine> {
  const { qemu, cpu, jail, jailUids: uids, probeDeadlineMs } = loadConfig();
  const paths = new Paths(dataDir);
  const asServed = { paths, qemu, cpu, wanted: "auto", probeDeadlineMs, connect } as const;
  const machine = await openMachine({
    ...asServed,
    jail: jail === "off" ? null : { uids },
    progress() {},
    onProblem() {},
  });
  const { accelerator, builds } = machine;
  return { ...machine, jail: undefined, vmm: new QemuVmms({ builds, accelerator, jail: undefined, onProblem() {} }) };
}
