/** Joins metrics and, if a collector is configured, traces: the composition root passes their hooks to the rooms below. */
import type { Observe } from "../capsules/transitions.ts";
import type { VmProcess } from "../vmm/vmm.ts";
import type { ServiceState } from "../wire/health.ts";
import type { ClusterReport } from "./cluster-metrics.ts";
import { Metrics } from "./metrics.ts";
import type { RelayReport } from "./network-metrics.ts";
import type { Traces } from "./traces.ts";
import { VmMemorySampler } from "./vm-memory.ts";

export interface TelemetryOptions {
  version: string;
  /** The collector's base URL; undefined: no traces. */
  tracesEndpoint: string | undefined;
  state: () => ServiceState;
  /** Memory available beyond the reserve. */
  spareBytes: () => number;
  /** Space on the data folder's disk beyond the reserve. */
  diskSpareBytes: () => number;
  /** Folders in lost+found. */
  lostFolders: () => number;
  /** Running capsules whose guest is not adopted yet. */
  adopting: () => number;
  relay: () => RelayReport;
  /** undefined: the host is alone. */
  cluster?: (() => ClusterReport) | undefined;
  /** The running VMs. */
  findVms: () => Promise<{ process: VmProcess }[]>;
}

export class Telemetry {
  readonly metrics: Metrics;
  readonly traces: Traces | undefined;

  static async start(options: TelemetryOptions): Promise<Telemetry> {
    return new Telemetry(options, await loadTraces(options));
  }

  private constructor({ findVms, ...sources }: TelemetryOptions, traces: Traces | undefined) {
    const sampler = new VmMemorySampler(async () => (await findVms()).map(({ process }) => process));
    this.metrics = new Metrics({ ...sources, vmMemory: () => sampler.sample() });
    this.traces = traces;
  }

  readonly observe: Observe = (operation, id, work) => {
    const { metrics, traces } = this;
    return metrics.observe(operation, id, traces === undefined ? work : () => traces.observe(operation, id, work));
  };

  /** Call at the start of a command, and the returned function at its end. */
  readonly observeExec = (id: string): (() => void) => {
    const ends = [this.metrics.execStarted(), this.traces?.execStarted(id)];
    return () => {
      for (const end of ends) end?.();
    };
  };

  /** Sends the remaining spans. */
  async close(graceMs: number): Promise<void> {
    await this.traces?.close(graceMs);
  }
}

/** Imported only if needed: the packages take some hundred milliseconds to load. */
async function loadTraces({ tracesEndpoint, version }: TelemetryOptions): Promise<Traces | undefined> {
  if (tracesEndpoint === undefined) return undefined;
  const { Traces } = await import("./traces.ts");
  return new Traces(tracesEndpoint, version);
}
