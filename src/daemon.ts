/**
 * The composition root: the only place that makes the services, joins them, and takes them apart in reverse.
 */
import { chmodSync, mkdirSync } from "node:fs";
import { availableParallelism, totalmem } from "node:os";
import { join } from "node:path";
import pino from "pino";
import { connectAgent } from "./agent/connection.ts";
import { Activity } from "./capsules/activity.ts";
import { Capsules } from "./capsules/capsules.ts";
import { systemClock } from "./capsules/clock.ts";
import { DiskUse } from "./capsules/disk-use.ts";
import { Idle } from "./capsules/idle.ts";
import { newCapsuleId } from "./capsules/ids.ts";
import { CapsuleLocks } from "./capsules/locks.ts";
import { Newcomers } from "./capsules/newcomers.ts";
import { type QuotaLimits, Quotas } from "./capsules/quotas.ts";
import { Reconciler } from "./capsules/reconciler.ts";
import { recover } from "./capsules/recovery.ts";
import { CapsuleStore } from "./capsules/store.ts";
import { type Log, Transitions } from "./capsules/transitions.ts";
import type { Config } from "./config.ts";
import { AuditRows } from "./db/audit-rows.ts";
import { CapsuleRows } from "./db/capsule-rows.ts";
import { databasePath, openDatabase } from "./db/database.ts";
import { TeamRows } from "./db/team-rows.ts";
import { TemplateRows } from "./db/template-rows.ts";
import { type DataLock, lockData } from "./host/disk/lock.ts";
import { Paths } from "./host/disk/paths.ts";
import type { Connect } from "./host/guest.ts";
import { LocalHost } from "./host/local-host.ts";
import { openMachine } from "./host/machine.ts";
import { stepThatEnds } from "./host/steps.ts";
import { buildServer } from "./http/app.ts";
import { describeError, standardOutput } from "./http/log.ts";
import { type Certificate, readCertificate, renewCertificate, requireSafeBinding } from "./http/tls.ts";
import { Audit } from "./teams/audit.ts";
import { ensureFirstKey } from "./teams/first-key.ts";
import { Teams } from "./teams/teams.ts";
import { Telemetry } from "./telemetry/telemetry.ts";
import { Templates } from "./templates/templates.ts";
import { version } from "./version.ts";
import { noJail } from "./vmm/jail/jail.ts";
import { layerMerger } from "./vmm/layer-merge.ts";
import { flattenMemory } from "./vmm/memory/base-memory.ts";
import type { Health } from "./wire/health.ts";

const flushMs = 1_000;
const reconcileMs = 300_000;
const measureMs = 60_000;
const dayMs = 86_400_000;
const traceGraceMs = 3_000;
const defaultShape = { vcpus: 1, memoryMb: 512 };

export interface Daemon {
  /** Where it listens, as a URL. */
  url: string;
  /** The first key of team `default`, only when it was made by this start. */
  newKey: string | undefined;
  accelerator: "kvm" | "tcg";
  /** Reads the TLS files again, if there are any. Throws when they cannot be used; the old ones stay in use then. */
  renewCertificate(): void;
  /** Stops listening, lets requests and changes end, lets go of the VMs, which run on. */
  stop(): Promise<void>;
}

/** Starts the service. `progress` is told of each step that can take long. Throws when the data folder is in use. */
export async function startDaemon(config: Config, progress: (step: string) => void): Promise<Daemon> {
  const certificate = readCertificate({ certPath: config.tlsCert, keyPath: config.tlsKey });
  requireSafeBinding(config.host, certificate !== undefined, config.plainHttp);
  process.umask(0o077); // whatever is made from here on is ours alone
  mkdirSync(config.dataDir, { recursive: true, mode: 0o700 });
  chmodSync(config.dataDir, 0o700);
  const lock = lockData(config.dataDir);
  try {
    return await startLocked(config, certificate, lock, progress);
  } catch (error) {
    lock.release();
    throw error;
  }
}

async function startLocked(
  config: Config,
  certificate: Certificate | undefined,
  lock: DataLock,
  progress: (step: string) => void,
): Promise<Daemon> {
  const log = pino({ level: config.logLevel, base: null, serializers: { err: describeError } }, standardOutput);
  const data = openData(config, log);
  const machine = await openHost(config, log, progress);
  const { host, accelerator } = machine;
  const store = new CapsuleStore(data.capsuleRows, systemClock.now);
  const health = healthOf(machine, store);
  const telemetry = await Telemetry.start({
    version,
    tracesEndpoint: config.tracesEndpoint,
    health,
    findVms: () => machine.vmm.findBelow(config.dataDir),
  });
  const floors = joinFloors(config, { log, data, machine, store, telemetry });
  const { capsules, templates, transitions, reconciler } = floors;
  const { teams, audit } = data;
  const app = buildServer(
    { teams, capsules: telemetry.watchCapsules(capsules), templates, health: { health }, audit },
    {
      limits: config.limits,
      logger: log,
      version,
      certificate,
      trustProxy: config.trustProxy,
      drainMs: config.drainMs,
      web: config.web ?? join(config.dataDir, "web"),
      metrics: config.metrics === "off" ? undefined : { service: telemetry.metrics, to: config.metrics },
      tracing: telemetry.traces,
    },
  );
  await recover({ store, host, transitions, log, reconciler });
  await templates.collect();
  const rest = keepHouse(log, data, floors);
  const url = await app.listen({ host: config.host, port: config.port });
  host.openWarmPools();
  host.verifyAll();
  log.info({ url, accelerator: accelerator.kind }, "listening");
  return {
    url,
    newKey: data.newKey,
    accelerator: accelerator.kind,
    renewCertificate: () => {
      const renewed = readCertificate({ certPath: config.tlsCert, keyPath: config.tlsKey });
      if (renewed !== undefined) renewCertificate(app, renewed);
    },
    async stop() {
      rest();
      await app.close(); // within the drain time
      await capsules.close(config.drainMs);
      await host.close();
      await telemetry.close(traceGraceMs);
      teams.flush();
      audit.flush();
      data.database.close();
      lock.release();
      log.info("stopped; capsules run on");
    },
  };
}

type Data = ReturnType<typeof openData>;

/** The database, and what stands on it alone. */
function openData(config: Config, log: Log) {
  const database = openDatabase(databasePath(config.dataDir));
  const teams = new Teams(new TeamRows(database));
  const newKey = ensureFirstKey(config.dataDir, teams);
  const audit = new Audit({
    rows: new AuditRows(database),
    entriesMax: config.auditEntriesMax,
    keepMs: config.auditKeepDays * dayMs,
    onLoss: (entries) => log.error({ entries }, "audit entries were lost: the database cannot be written"),
  });
  const [capsuleRows, templateRows] = [new CapsuleRows(database), new TemplateRows(database)];
  return { database, teams, newKey, audit, capsuleRows, templateRows };
}

type OpenHost = Awaited<ReturnType<typeof openHost>>;

/** The host, with the template that most will ask for. */
async function openHost(config: Config, log: Log, progress: (step: string) => void) {
  const paths = new Paths(config.dataDir);
  const connect: Connect = (socket, deadlineMs, signal) =>
    connectAgent(socket, { deadlineMs, signal, silenceMs: config.silenceMs });
  const { vmm, images, accelerator, jail } = await openMachine({
    paths,
    qemu: config.qemu,
    wanted: config.accelerator,
    jail: config.jail === "off" ? null : { uids: config.jailUids },
    connect,
    progress,
  });
  log.info({ accelerator: accelerator.kind, why: accelerator.why }, "accelerator chosen");
  const jailReport = jail?.report() ?? noJail;
  if (jail === undefined)
    log.error({ jail: jailReport }, "QEMU runs without a jail: do not run code that nobody has read");
  else log.info({ jail: jailReport }, "jail built");
  const step = stepThatEnds(config.crashAt);
  const host = new LocalHost({
    paths,
    images,
    vmm,
    connect,
    flatten: flattenMemory,
    mergeLayer: await layerMerger(jail),
    bootMs: config.bootDeadlineMs,
    wakeMs: config.wakeDeadlineMs,
    reconnectMs: config.wakeDeadlineMs,
    concurrentStarts: config.concurrentStarts,
    spareBases: config.spareBases,
    memoryReserveBytes: config.memoryReserveMb * 2 ** 20,
    pool: {
      newId: newCapsuleId,
      budgetBytes: config.pool === "off" ? 0 : config.poolMemoryMb * 2 ** 20,
      minimum: { key: { origin: { kind: "base", name: "minimal" }, shape: defaultShape }, size: config.poolMin },
      onFailure: (error) => log.warn({ err: error }, "a capsule could not be made ahead of time"),
    },
    warmProcesses: {
      maxCount: config.warmProcesses,
      budgetBytes: config.warmProcessesMemoryMb * 2 ** 20,
      onFailure: (error) => log.warn({ err: error }, "a process could not be started ahead of time, or was of no use"),
    },
    onDamage: (folder, why) => log.error({ folder, why }, "a checkpoint is damaged"),
    step,
  });
  await host.sweep();
  progress("preparing the minimal template");
  await host.prepare({ kind: "base", name: "minimal" }, defaultShape);
  return { host, vmm, accelerator, jailReport, step };
}

function healthOf({ host, accelerator, jailReport }: OpenHost, store: CapsuleStore): () => Health {
  return () => ({
    ready: true,
    version,
    accelerator: accelerator.kind,
    accelerator_reason: accelerator.why,
    jail: jailReport,
    pid: process.pid,
    capsules: store.counts(),
    pool: host.pool(),
    warm_processes: host.warmProcesses(),
    blanks: host.warmProcesses(),
  });
}

interface Ground {
  log: Log;
  data: Data;
  machine: OpenHost;
  store: CapsuleStore;
  telemetry: Telemetry;
}

type Floors = ReturnType<typeof joinFloors>;

/** Capsules and templates, with all that they need of each other. */
function joinFloors(config: Config, { log, data, machine, store, telemetry }: Ground) {
  const { database, capsuleRows, templateRows } = data;
  const { host, step } = machine;
  const clock = systemClock;
  const locks = new CapsuleLocks();
  const activity = new Activity(capsuleRows, clock);
  const idle = new Idle(clock, activity, (id) => capsules.expire(id));
  const watchedHost = telemetry.watchHost(host);
  const onFreed = () => templates.collect();
  const newcomers = new Newcomers(host.accelerator === "tcg" ? availableParallelism() + 1 : Infinity, activity);
  const about = { store, locks, activity, idle, newcomers, clock, log, step, onFreed };
  const transitions = new Transitions({ ...about, host: watchedHost });
  const diskUse = new DiskUse({
    ids: () => capsuleRows.all().map((row) => row.id),
    measure: (id) => host.diskBytes(id),
  });
  const quotas = new Quotas({
    rows: capsuleRows,
    templates: templateRows,
    diskOf: (id) => diskUse.of(id),
    limits: quotaLimits(config),
  });
  const below = { store, host, locks, transitions, activity, idle, clock, quotas };
  const capsules = new Capsules({ ...below, templates: templateRows });
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
  const reconciler = new Reconciler({ store, host, locks, transitions, log, storages });
  return { activity, transitions, capsules, templates, diskUse, reconciler };
}

/** What is done now and then for as long as the service runs; the returned function ends it. */
function keepHouse(log: Log, { teams, audit }: Data, { activity, diskUse, reconciler }: Floors): () => void {
  const reconcile = () => {
    reconciler
      .reconcile()
      .then(() => audit.age())
      .catch((error: unknown) => log.error({ err: error }, "reconciling failed; it will be tried again"));
  };
  const measure = () => {
    diskUse.measure().catch((error: unknown) => log.error({ err: error }, "the disk could not be looked at"));
  };
  measure();
  const timers = [
    setInterval(reconcile, reconcileMs),
    setInterval(measure, measureMs),
    setInterval(() => flush(teams, activity, audit, log), flushMs),
  ];
  for (const timer of timers) timer.unref();
  return () => {
    for (const timer of timers) clearInterval(timer);
  };
}

function quotaLimits({ limits, memoryOvercommit }: Config): QuotaLimits {
  return {
    capsules: limits.capsules_max,
    runningVcpus: limits.running_vcpus_max,
    runningMemoryMb: limits.running_memory_max_mb,
    diskBytes: limits.disk_max_bytes,
    templates: limits.templates_max,
    hostMemoryMb: memoryOvercommit * Math.floor(totalmem() / 2 ** 20),
  };
}

function flush(teams: Teams, activity: Activity, audit: Audit, log: Log): void {
  try {
    teams.noticeRevoked();
    teams.flush();
    activity.flush();
    audit.flush();
  } catch (error) {
    log.error({ err: error }, "activity or the audit log could not be written; it will be tried again");
  }
}
