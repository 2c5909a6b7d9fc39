/** Metrics of the connections that capsules open, and of the process that dials them. */
import { Counter, Gauge, type Registry } from "prom-client";

/** Added by one capsule. */
export interface ConnectionCounts {
  connections: number;
  denied: number;
  failed: number;
  bytesOut: number;
  bytesIn: number;
}

export interface RelayReport {
  isUp: boolean;
  restarts: number;
  connectionsOpen: number;
  /** 0 while it is down. */
  memoryBytes: number;
}

/** A process that a guest has taken over names at most so many. */
const resultsMax = 8;

export class NetworkMetrics {
  readonly #connections: Counter;
  readonly #bytes: Counter;
  readonly #names: Counter;
  readonly #results = new Set<string>();

  constructor(report: () => RelayReport, registers: Registry[]) {
    this.#connections = new Counter({
      name: "capsule_network_connections_total",
      help: "Connections that capsules have asked for: allowed, denied by a policy or a limit, failed.",
      labelNames: ["verdict"],
      registers,
    });
    this.#bytes = new Counter({
      name: "capsule_network_bytes_total",
      help: "Bytes of these connections; out: from capsules.",
      labelNames: ["direction"],
      registers,
    });
    this.#names = new Counter({
      name: "capsule_network_names_total",
      help: "Questions of capsules to DNS by result.",
      labelNames: ["result"],
      registers,
    });
    gauge("capsule_network_connections_open", "Connections of capsules that are open.", () => report().connectionsOpen);
    gauge("capsule_network_relay_up", "1 while the relay, which dials for capsules, takes connections; else 0.", () =>
      Number(report().isUp),
    );
    gauge("capsule_network_relay_memory_bytes", "Resident memory of the relay.", () => report().memoryBytes);
    gauge("capsule_network_relay_restarts", "Restarts of the relay since the start of the server.", () =>
      Math.max(0, report().restarts),
    );

    function gauge(name: string, help: string, read: () => number): void {
      new Gauge({
        ...{ name, help, registers },
        collect() {
          this.set(read());
        },
      });
    }
  }

  counted({ connections, denied, failed, bytesOut, bytesIn }: ConnectionCounts): void {
    for (const [verdict, count] of Object.entries({ allowed: connections, denied, failed }))
      this.#connections.inc({ verdict }, count);
    this.#bytes.inc({ direction: "out" }, bytesOut);
    this.#bytes.inc({ direction: "in" }, bytesIn);
  }

  /** `results`: how many questions had each. */
  named(results: Record<string, number>): void {
    for (const [name, count] of Object.entries(results)) {
      if (this.#results.size < resultsMax) this.#results.add(name);
      this.#names.inc({ result: this.#results.has(name) ? name : "other" }, count);
    }
  }
}
