/**
 * Prometheus metrics: aggregates only, without ids and names of teams. Events are counted as they happen; states are read
 * at each scrape.
 */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from "prom-client";
import type { Observe, Operation } from "../capsules/transitions.ts";
import type { ServiceState } from "../wire/health.ts";
import { type ClusterReport, registerCluster } from "./cluster-metrics.ts";
import { closeLabel, createMetrics, execTimes, operationBuckets, portCounters, socketCloses } from "./event-metrics.ts";
import { registerGauge } from "./gauge.ts";
import { NetworkMetrics, type RelayReport } from "./network-metrics.ts";
import type { VmMemory } from "./vm-memory.ts";

const requestBuckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
/** Resolution of the event loop's delay. A finer one wakes an idle server more often. */
const loopPrecisionMs = 50;

export interface MetricsSources {
  state: () => ServiceState;
  vmMemory: () => Promise<VmMemory>;
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
}

export class Metrics {
  /** Connections that capsules open. */
  readonly network: NetworkMetrics;
  readonly #registry = new Registry();
  readonly #requests: Histogram;
  readonly #operations: Histogram;
  readonly #statuses: Counter;
  readonly #pressurePauses: Counter;
  readonly #ports: ReturnType<typeof portCounters>;
  readonly #execs = { started: 0, running: 0 };
  readonly #execTimes: Histogram;
  readonly #creates: ReturnType<typeof createMetrics>;
  readonly #socketCloses: Counter;

  constructor(sources: MetricsSources) {
    const registers = [this.#registry];
    collectDefaultMetrics({ register: this.#registry, eventLoopMonitoringPrecision: loopPrecisionMs });
    this.#requests = new Histogram({
      name: "capsule_http_request_duration_seconds",
      help: "Answered requests, without WebSockets and event streams.",
      labelNames: ["method", "route", "status"],
      buckets: requestBuckets,
      registers,
    });
    this.#operations = new Histogram({
      name: "capsule_vm_operation_duration_seconds",
      help: "Operations on VMs: boot (of a new capsule), reboot and start (from a disk), resume, pause, stop, capture.",
      labelNames: ["operation", "outcome"],
      buckets: operationBuckets,
      registers,
    });
    this.#statuses = new Counter({
      name: "capsule_status_changes_total",
      help: "Changes of capsules to a status; removed: destroyed.",
      labelNames: ["status"],
      registers,
    });
    this.#pressurePauses = new Counter({
      name: "capsule_memory_pressure_pauses_total",
      help: "Pauses because the host was short of memory: done, failed; ended: VMs that could not be paused.",
      labelNames: ["outcome"],
      registers,
    });
    this.#ports = portCounters(registers);
    registerExecs(this.#execs, registers);
    this.#execTimes = execTimes(registers);
    this.#creates = createMetrics(registers);
    this.#socketCloses = socketCloses(registers);
    registerSpareDisk(sources.diskSpareBytes, registers);
    registerHealth(sources.state, registers);
    registerWarmPools(sources.state, registers);
    registerVmMemory(sources.vmMemory, registers);
    registerSpareMemory(sources.spareBytes, registers);
    registerLostFolders(sources.lostFolders, registers);
    registerAdopting(sources.adopting, registers);
    if (sources.cluster !== undefined) registerCluster(sources.cluster, registers);
    this.network = new NetworkMetrics(sources.relay, registers);
  }

  requestEnded(method: string, route: string, status: number, seconds: number): void {
    this.#requests.observe({ method, route, status }, seconds);
  }

  readonly observe: Observe = async <T>(
    operation: Operation,
    _capsuleId: string,
    work: () => Promise<T>,
  ): Promise<T> => {
    const end = this.#operations.startTimer({ operation });
    try {
      const result = await work();
      end({ outcome: "done" });
      return result;
    } catch (error) {
      end({ outcome: "failed" });
      throw error;
    }
  };

  /** Call the returned function when the command ends. */
  execStarted(): () => void {
    this.#execs.started++;
    this.#execs.running++;
    const end = this.#execTimes.startTimer();
    return () => {
      this.#execs.running--;
      end();
    };
  }

  /** A create was admitted; whether a warm capsule was ready for it. */
  createBegan(isWarm: boolean): void {
    this.#creates.begun.inc({ warm: isWarm ? "hit" : "miss" });
  }

  /** A new capsule runs. */
  created(seconds: number): void {
    this.#creates.took.observe(seconds);
  }

  /** A WebSocket of the API was closed, by either side. */
  socketClosed(code: number): void {
    this.#socketCloses.inc({ code: closeLabel(code) });
  }

  statusReached(status: string): void {
    this.#statuses.inc({ status });
  }

  /** A capsule was paused because the host is short of memory, or could not be. */
  pausedUnderPressure(outcome: "done" | "failed" | "ended"): void {
    this.#pressurePauses.inc({ outcome });
  }

  portRequestEnded(status: number | undefined): void {
    this.#ports.requests.inc({ status: status === undefined ? "none" : `${Math.floor(status / 100)}xx` });
  }

  portBytesMoved(direction: "in" | "out", bytes: number): void {
    this.#ports.bytes.inc({ direction }, bytes);
  }

  portWoke(): void {
    this.#ports.wakes.inc();
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  /** All metrics in Prometheus's text format. */
  text(): Promise<string> {
    return this.#registry.metrics();
  }
}

function registerExecs(execs: Readonly<{ started: number; running: number }>, registers: Registry[]): void {
  new Counter({
    name: "capsule_execs_total",
    help: "Commands started.",
    registers,
    collect() {
      this.reset();
      this.inc(execs.started);
    },
  });
  new Gauge({
    name: "capsule_execs_running",
    help: "Commands running in the foreground or over a WebSocket.",
    registers,
    collect() {
      this.set(execs.running);
    },
  });
}

function registerHealth(state: () => ServiceState, registers: Registry[]): void {
  new Gauge({
    name: "capsule_info",
    help: "Always 1; the labels are the version and the accelerator.",
    labelNames: ["version", "accelerator"],
    registers,
    collect() {
      const { version, accelerator } = state();
      this.set({ version, accelerator }, 1);
    },
  });
  new Gauge({
    name: "capsule_capsules",
    help: "Capsules of all teams by status.",
    labelNames: ["status"],
    registers,
    collect() {
      for (const [status, count] of Object.entries(state().capsules)) this.set({ status }, count);
    },
  });
}

function registerWarmPools(state: () => ServiceState, registers: Registry[]): void {
  const gauges = [
    ["capsule_pool_ready", "Warm capsules ready to be claimed.", "pool", "ready"],
    ["capsule_pool_target", "Warm capsules that the pool aims for.", "pool", "target"],
    ["capsule_warm_processes_ready", "Warm QEMU processes ready to be claimed.", "warm_processes", "ready"],
    ["capsule_warm_processes_target", "Warm QEMU processes that the pool aims for.", "warm_processes", "target"],
  ] as const;
  for (const [name, help, pool, field] of gauges) {
    new Gauge({
      name,
      help,
      registers,
      collect() {
        this.set(state()[pool][field]);
      },
    });
  }
}

function registerVmMemory(sample: () => Promise<VmMemory>, registers: Registry[]): void {
  const gauges = [
    ["capsule_vms", "QEMU processes of this data folder.", "vms"],
    ["capsule_vm_rss_bytes", "Memory of all VMs, shared pages counted in each.", "rssBytes"],
    ["capsule_vm_pss_bytes", "Memory of all VMs, shared pages divided among them; sampled in rotation.", "pssBytes"],
  ] as const;
  for (const [name, help, field] of gauges) {
    new Gauge({
      name,
      help,
      registers,
      async collect() {
        this.set((await sample())[field]);
      },
    });
  }
}

function registerSpareMemory(spareBytes: () => number, registers: Registry[]): void {
  const help = "Memory of the host available beyond the reserve; below 0 capsules are paused.";
  registerGauge("capsule_host_memory_spare_bytes", help, spareBytes, registers);
}

function registerSpareDisk(spareBytes: () => number, registers: Registry[]): void {
  const help = "Space on the data folder's disk beyond the reserve and what is promised; below 0 creates are refused.";
  registerGauge("capsule_disk_spare_bytes", help, spareBytes, registers);
}

function registerLostFolders(count: () => number, registers: Registry[]): void {
  const help = "Capsules and templates in lost+found, which the database does not know.";
  registerGauge("capsule_lost_folders", help, count, registers);
}

function registerAdopting(count: () => number, registers: Registry[]): void {
  const help = "Running capsules whose guest has not answered since the server was started.";
  registerGauge("capsule_capsules_adopting", help, count, registers);
}
