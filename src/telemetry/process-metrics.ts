/**
 * The figures of this process that prom-client calls its default ones, but for the heap's collections. To tell of one,
 * Node makes an entry whose deprecated properties it defines anew: with a young generation that is kept small, and so
 * collected hundreds of times a second under load, that took a twelfth of the processor time of a GET.
 */
import { createRequire } from "node:module";
import { collectDefaultMetrics, type Registry } from "prom-client";

/** How finely the event loop's delay is watched; finer wakes an idle server more often. */
const loopPrecisionMs = 50;

type Describe = (registry: Registry, options: { eventLoopMonitoringPrecision: number }) => void;

export function describeProcess(registry: Registry): void {
  const require = createRequire(import.meta.url);
  for (const name of collectDefaultMetrics.metricsList) {
    if (name === "gc") continue;
    const describe = require(`prom-client/lib/metrics/${name}.js`) as Describe;
    describe(registry, { eventLoopMonitoringPrecision: loopPrecisionMs });
  }
}
