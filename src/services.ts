/** Capsules and templates, with the parts that only they use, joined over one host and one database. */
import { totalmem } from "node:os";
import { Activity } from "./capsules/activity.ts";
import { Capsules } from "./capsules/capsules.ts";
import { systemClock } from "./capsules/clock.ts";
import { DiskLimiter } from "./capsules/disk-limiter.ts";
import { Idle } from "./capsules/idle.ts";
import { CapsuleLocks } from "./capsules/locks.ts";
import { MemoryWatch } from "./capsules/memory-watch.ts";
import { DiskUse, type QuotaLimits, Quotas } from "./capsules/quotas.ts";
import { Reconciler } from "./capsules/reconciler.ts";
import { Runs } from "./capsules/runs.ts";
import type { CapsuleStore } from "./capsules/store.ts";
import { type Log, Transitions } from "./capsules/transitions.ts";
import { type Config, ownMemoryMb } from "./config.ts";
import type { CapsuleRows } from "./db/capsule-rows.ts";
import type { Database } from "./db/database.ts";
import type { TemplateRows } from "./db/template-rows.ts";
import type { LocalHost } from "./host/local-host.ts";
import type { Step } from "./host/steps.ts";
import type { Audit } from "./teams/audit.ts";
import { auditOfService } from "./teams/service-audit.ts";
import type { Telemetry } from "./telemetry/telemetry.ts";
import { Templates } from "./templates/templates.ts";

export interface ServiceInputs {
  log: Log;
  database: Database;
  capsuleRows: CapsuleRows;
  templateRows: TemplateRows;
  audit: Audit;
  host: LocalHost;
  step: Step;
  store: CapsuleStore;
  telemetry: Telemetry;
}

export function buildServices(config: Config, inputs: ServiceInputs) {
  const { log, database, capsuleRows, templateRows, audit, host, step, store, telemetry } = inputs;
  const { onPaused, onEnded, onDiskShortage } = auditOfService(audit);
  const clock = systemClock;
  const locks = new CapsuleLocks();
  const activity = new Activity(capsuleRows, clock);
  const runs = new Runs();
  const onFreed = () => templates.collect();
  const { observe, observeExec } = telemetry;
  const about = { store, host, locks, runs, activity, clock, log, step, onFreed };
  const beforeRun: DiskLimiter["beforeRun"] = (teamId, guest) => disk.beforeRun(teamId, guest);
  const transitions = new Transitions({ ...about, observe, beforeRun });
  const diskUse = new DiskUse({
    ids: () => capsuleRows.all().map((row) => row.id),
    measure: (id) => host.diskBytes(id),
  });
  const quotas = new Quotas({
    rows: capsuleRows,
    templates: templateRows,
    diskOf: (id) => diskUse.of(id),
    runningMemoryMb: () => store.runningMemoryMb(),
    limits: quotaLimits(config),
  });
  const disk = new DiskLimiter({
    rows: capsuleRows,
    guests: () => runs.guests(),
    diskUse,
    usedBytes: (teamId) => quotas.usage(teamId).diskBytes,
    quotaBytes: config.limits.disk_max_bytes,
    space: host.space,
    ...{ clock, log, onChange: onDiskShortage },
  });
  const below = { store, host, locks, runs, transitions, activity, clock, quotas, disk };
  const capsules = new Capsules({ ...below, templates: templateRows, observeExec, onPaused });
  runs.apply(new Idle(clock, activity, (id) => capsules.expire(id)));
  capsules.onChange(onEnded);
  capsules.onChange((_teamId, _id, view) => telemetry.metrics.statusReached(view?.status ?? "removed"));
  const memoryWatch = new MemoryWatch({
    ...{ host, store, clock, log },
    pause: (id) => capsules.relieve(id),
    capacityBytes: (ownMemoryMb - config.memoryReserveMb) * 2 ** 20,
    onPause: (outcome) => telemetry.metrics.pausedUnderPressure(outcome),
  });
  const templates = new Templates({
    database,
    rows: templateRows,
    capsuleRows,
    capsules,
    quotas,
    host,
    now: clock.now,
    step,
    log,
  });
  const storages = () => new Set(templateRows.all().map((row) => row.storage));
  const reconciler = new Reconciler({ store, host, locks, runs, transitions, log, storages });
  return { activity, transitions, capsules, templates, disk, reconciler, memoryWatch };
}

function quotaLimits({ limits, memoryOvercommit }: Config): QuotaLimits {
  return {
    capsules: limits.capsules_max,
    starts: limits.starts_max,
    runningVcpus: limits.running_vcpus_max,
    runningMemoryMb: limits.running_memory_max_mb,
    diskBytes: limits.disk_max_bytes,
    templates: limits.templates_max,
    hostMemoryMb: memoryOvercommit * Math.floor(totalmem() / 2 ** 20),
  };
}
