/**
 * The periodic work of a running service: flushing activity, counters, decisions, key uses and audit entries, reconciling, checking disk use,
 * watching memory, measuring capsules.
 */
import type { Activity } from "./capsules/activity.ts";
import type { DiskLimiter } from "./capsules/disk-limiter.ts";
import type { MemoryWatch } from "./capsules/memory-watch.ts";
import type { Metrics } from "./capsules/metrics/metrics.ts";
import type { NetworkCounters } from "./capsules/network-counters.ts";
import type { NetworkDecisions } from "./capsules/network-decisions.ts";
import type { Reconciler } from "./capsules/reconciler.ts";
import type { Log } from "./log.ts";
import type { Audit } from "./teams/audit.ts";
import type { Teams } from "./teams/teams.ts";

const flushMs = 1_000;
const reconcileMs = 300_000;
const checkDiskMs = 1_000;
const measureMs = 10_000;

export interface MaintenanceOptions {
  teams: Teams;
  audit: Audit;
  activity: Activity;
  networkCounters: NetworkCounters;
  networkDecisions: NetworkDecisions;
  disk: DiskLimiter;
  reconciler: Reconciler;
  memoryWatch: MemoryWatch;
  metrics: Metrics;
  log: Log;
}

/** Starts the timers; the returned function stops them. A failure is logged, and the next interval tries again. */
export function startMaintenance(options: MaintenanceOptions): () => void {
  const { audit, disk, reconciler, log } = options;
  const reconcile = () => {
    reconciler
      .reconcile()
      .then(() => audit.removeExpired())
      .catch((error: unknown) => log.error({ err: error }, "reconciling failed; it will be tried again"));
  };
  const checkDisk = () => {
    disk.check().catch((error: unknown) => log.error({ err: error }, "disk use could not be checked"));
  };
  checkDisk();
  const timers = [
    setInterval(reconcile, reconcileMs),
    setInterval(checkDisk, checkDiskMs),
    setInterval(() => void flush(options), flushMs),
    setInterval(() => void options.metrics.pass(), measureMs),
  ];
  for (const timer of timers) timer.unref();
  const stopWatch = options.memoryWatch.start();
  return () => {
    stopWatch();
    for (const timer of timers) clearInterval(timer);
  };
}

async function flush({
  teams,
  activity,
  networkCounters,
  networkDecisions,
  audit,
  log,
}: MaintenanceOptions): Promise<void> {
  try {
    await teams.checkRevoked();
    audit.flush();
    await teams.flushInParts();
    await activity.flushInParts();
    await networkCounters.flushInParts();
    await networkDecisions.flushInParts();
  } catch (error) {
    log.error({ err: error }, "activity or the audit log could not be written; it will be tried again");
  }
}
