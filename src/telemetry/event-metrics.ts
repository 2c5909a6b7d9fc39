/** Metrics of creates, commands, WebSockets and requests at ports, each of which is counted as it happens. */
import { Counter, Histogram, type Registry } from "prom-client";
import { closeCodes } from "../wire/errors.ts";

export const operationBuckets = [0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60];
const execBuckets = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200];
/** Close codes of the API, and of a close without a code or without a frame. */
const knownCodes: ReadonlySet<number> = new Set([...Object.values(closeCodes), 1005, 1006]);

export function createMetrics(registers: Registry[]) {
  return {
    begun: new Counter({
      name: "capsule_creates_total",
      help: "Creates that were admitted; hit: a warm capsule was ready, miss: one is booted.",
      labelNames: ["warm"],
      registers,
    }),
    took: new Histogram({
      name: "capsule_create_duration_seconds",
      help: "Creates, from their admission until the capsule runs.",
      buckets: operationBuckets,
      registers,
    }),
  };
}

export function portCounters(registers: Registry[]) {
  return {
    requests: new Counter({
      name: "capsule_network_port_requests_total",
      help: "Requests at the URLs of ports by class of status; none: the client was gone before an answer.",
      labelNames: ["status"],
      registers,
    }),
    bytes: new Counter({
      name: "capsule_network_port_bytes_total",
      help: "Bytes of bodies and upgraded connections at the URLs of ports; in: to the capsule.",
      labelNames: ["direction"],
      registers,
    }),
    wakes: new Counter({
      name: "capsule_network_wakes_total",
      help: "Resumes begun by requests at the URLs of ports.",
      registers,
    }),
  };
}

/** Commands in the foreground or over a WebSocket. */
export function execTimes(registers: Registry[]): Histogram {
  return new Histogram({
    name: "capsule_exec_duration_seconds",
    help: "Commands in the foreground or over a WebSocket, from their start to their end.",
    buckets: execBuckets,
    registers,
  });
}

export function socketCloses(registers: Registry[]): Counter {
  return new Counter({
    name: "capsule_socket_closes_total",
    help: "Closed WebSockets of the API by close code; other: a code of the client's own.",
    labelNames: ["code"],
    registers,
  });
}

/** A client may close with any of 4 000 codes, each of which would be a series. */
export function closeLabel(code: number): string {
  return knownCodes.has(code) ? String(code) : "other";
}
