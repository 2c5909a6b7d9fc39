/** Metrics and log of requests at ports' URLs. They are told no path, header or byte of a request. */
import type { Logger } from "pino";
import { RateLimiter } from "../access/rate-limiter.ts";
import type { MetricsService } from "../metrics.ts";
import type { PortAddress } from "./port-hosts.ts";

export interface PortReport {
  /** Undefined: the Host names no port. */
  address: PortAddress | undefined;
  method: string;
  /** Undefined: the client was gone before an answer. */
  status: number | undefined;
  /** Undefined: it was no refusal. */
  code: string | undefined;
  teamId: string | undefined;
  startedMs: number;
}

/** As the API's log: lines of refused clients without a key could fill the disk. */
const refusedPerSec = 10;
const refusedBurst = 100;

export class PortReports {
  readonly #metrics: MetricsService | undefined;
  readonly #log: Logger;
  readonly #refused = new RateLimiter(refusedPerSec, refusedBurst);
  #unlogged = 0;

  constructor(metrics: MetricsService | undefined, log: Logger) {
    this.#metrics = metrics;
    this.#log = log;
  }

  ended({ address, method, status, code, teamId, startedMs }: PortReport): void {
    this.#metrics?.portRequestEnded(status);
    if (teamId === undefined && this.#refused.take("") > 0) {
      this.#unlogged++;
      return;
    }
    const unlogged = this.#unlogged;
    this.#unlogged = 0;
    const durationMs = Math.round((performance.now() - startedMs) * 1_000) / 1_000;
    const about = { method, ...address, status, code, teamId, durationMs, ...(unlogged > 0 ? { unlogged } : {}) };
    this.#log.info(about, "port request");
  }

  moved(direction: "in" | "out", bytes: number): void {
    this.#metrics?.portBytesMoved(direction, bytes);
  }

  woke(): void {
    this.#metrics?.portWoke();
  }
}
