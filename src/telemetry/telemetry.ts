/** Figures always, spans only where a collector is named: what the composition root joins the floors with. */
import type { Host } from "../host/host.ts";
import type { CapsulesService } from "../http/services.ts";
import type { VmProcess } from "../vmm/vmm.ts";
import type { Health } from "../wire/health.ts";
import { Metrics } from "./metrics.ts";
import { type Observe, observeExecs, observeHost } from "./observe.ts";
import type { Traces } from "./traces.ts";
import { VmMemorySampler } from "./vm-memory.ts";

export interface TelemetryOptions {
  version: string;
  /** The collector's base URL; undefined: no spans. */
  tracesEndpoint: string | undefined;
  health: () => Health;
  /** The VMs that run now. */
  findVms: () => Promise<{ process: VmProcess }[]>;
}

export class Telemetry {
  readonly metrics: Metrics;
  readonly traces: Traces | undefined;

  static async start(options: TelemetryOptions): Promise<Telemetry> {
    return new Telemetry(options, await loadTraces(options));
  }

  private constructor({ health, findVms }: TelemetryOptions, traces: Traces | undefined) {
    const sampler = new VmMemorySampler(async () => (await findVms()).map(({ process }) => process));
    this.metrics = new Metrics({ health, vmMemory: () => sampler.sample() });
    this.traces = traces;
  }

  watchHost(host: Host): Host {
    const { metrics, traces } = this;
    const observe: Observe = (deed, id, work) =>
      metrics.observe(deed, id, traces === undefined ? work : () => traces.observe(deed, id, work));
    return observeHost(host, observe);
  }

  watchCapsules(capsules: CapsulesService): CapsulesService {
    capsules.onChange((_teamId, _id, view) => this.metrics.statusReached(view?.status ?? "removed"));
    return observeExecs(capsules, (id) => {
      const counted = this.metrics.execBegan();
      const traced = this.traces?.execBegan(id);
      return () => {
        counted();
        traced?.();
      };
    });
  }

  /** Sends what is left of the spans. */
  async close(graceMs: number): Promise<void> {
    await this.traces?.close(graceMs);
  }
}

/** Some hundred milliseconds and megabytes that nobody without a collector pays. */
async function loadTraces({ tracesEndpoint, version }: TelemetryOptions): Promise<Traces | undefined> {
  if (tracesEndpoint === undefined) return undefined;
  const { Traces } = await import("./traces.ts");
  return new Traces(tracesEndpoint, version);
}
