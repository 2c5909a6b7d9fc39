/**
 * Figures for Prometheus: aggregates only, no ids and no teams' names. What changes rarely is read when somebody asks;
 * what is counted costs a few additions.
 */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from "prom-client";
import type { Health } from "../wire/health.ts";
import type { Observe, Transition } from "./observe.ts";
import type { VmMemory } from "./vm-memory.ts";

const requestBuckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
const deedBuckets = [0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60];
/** Resolution of the event loop's delay. A finer one wakes an idle server more often. */
const loopPrecisionMs = 50;

export interface MetricsSources {
  health: () => Health;
  vmMemory: () => Promise<VmMemory>;
}

export class Metrics {
  readonly #registry = new Registry();
  readonly #requests: Histogram;
  readonly #deeds: Histogram;
  readonly #statuses: Counter;
  readonly #execs = { begun: 0, running: 0 };

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
    this.#deeds = new Histogram({
      name: "capsule_vm_operation_duration_seconds",
      help: "What was done to VMs: boot (of a new capsule), resume, pause, capture.",
      labelNames: ["operation", "outcome"],
      buckets: deedBuckets,
      registers,
    });
    this.#statuses = new Counter({
      name: "capsule_status_changes_total",
      help: "Capsules that reached a status; removed: destroyed.",
      labelNames: ["status"],
      registers,
    });
    readExecs(this.#execs, registers);
    readHealth(sources.health, registers);
    readPools(sources.health, registers);
    readVmMemory(sources.vmMemory, registers);
  }

  requestEnded(method: string, route: string, status: number, seconds: number): void {
    this.#requests.observe({ method, route, status }, seconds);
  }

  readonly observe: Observe = async <T>(
    operation: Transition,
    _capsuleId: string,
    work: () => Promise<T>,
  ): Promise<T> => {
    const end = this.#deeds.startTimer({ operation });
    try {
      const result = await work();
      end({ outcome: "done" });
      return result;
    } catch (error) {
      end({ outcome: "failed" });
      throw error;
    }
  };

  /** The returned function says that the command is over. */
  execBegan(): () => void {
    this.#execs.begun++;
    this.#execs.running++;
    return () => void this.#execs.running--;
  }

  statusReached(status: string): void {
    this.#statuses.inc({ status });
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  /** All figures in Prometheus's text form. */
  text(): Promise<string> {
    return this.#registry.metrics();
  }
}

function readExecs(execs: Readonly<{ begun: number; running: number }>, registers: Registry[]): void {
  new Counter({
    name: "capsule_execs_total",
    help: "Commands begun.",
    registers,
    collect() {
      this.reset();
      this.inc(execs.begun);
    },
  });
  new Gauge({
    name: "capsule_execs_running",
    help: "Commands that somebody waits for.",
    registers,
    collect() {
      this.set(execs.running);
    },
  });
}

function readHealth(health: () => Health, registers: Registry[]): void {
  new Gauge({
    name: "capsule_info",
    help: "Always 1; the labels say which version runs, on what.",
    labelNames: ["version", "accelerator"],
    registers,
    collect() {
      const { version, accelerator } = health();
      this.set({ version, accelerator }, 1);
    },
  });
  new Gauge({
    name: "capsule_capsules",
    help: "Capsules of all teams by status.",
    labelNames: ["status"],
    registers,
    collect() {
      for (const [status, count] of Object.entries(health().capsules)) this.set({ status }, count);
    },
  });
}

function readPools(health: () => Health, registers: Registry[]): void {
  const figures = [
    ["capsule_pool_ready", "Capsules made ahead of time that wait to be claimed.", "pool", "ready"],
    ["capsule_pool_target", "Capsules that should be made ahead of time.", "pool", "target"],
    [
      "capsule_warm_processes_ready",
      "VM processes started ahead of time that wait to be claimed.",
      "warm_processes",
      "ready",
    ],
    ["capsule_warm_processes_target", "VM processes that should be started ahead of time.", "warm_processes", "target"],
  ] as const;
  for (const [name, help, pool, field] of figures) {
    new Gauge({
      name,
      help,
      registers,
      collect() {
        this.set(health()[pool][field]);
      },
    });
  }
}

function readVmMemory(look: () => Promise<VmMemory>, registers: Registry[]): void {
  const figures = [
    ["capsule_vms", "QEMU processes of this data folder.", "vms"],
    ["capsule_vm_rss_bytes", "Memory of all VMs, shared pages counted in each.", "rssBytes"],
    ["capsule_vm_pss_bytes", "Memory of all VMs, shared pages shared out; sampled in turns.", "pssBytes"],
  ] as const;
  for (const [name, help, field] of figures) {
    new Gauge({
      name,
      help,
      registers,
      async collect() {
        this.set((await look())[field]);
      },
    });
  }
}
