/**
 * The service without its machine and its HTTP server: teams, capsules and templates over one database and one host, with the
 * parts that only they use. Tests build it on a fake host and a manual clock.
 */
import { Activity } from "./capsules/activity.ts";
import { Adoptions } from "./capsules/adoptions.ts";
import { AutoResumes } from "./capsules/auto-resumes.ts";
import { Capsules } from "./capsules/capsules.ts";
import { Captures } from "./capsules/captures.ts";
import type { Clock } from "./capsules/clock.ts";
import { Deadlines } from "./capsules/deadlines.ts";
import { Decisions } from "./capsules/decisions.ts";
import { DiskLimiter } from "./capsules/disk-limiter.ts";
import { fillDiskSizes } from "./capsules/disk-sizes.ts";
import { Envs } from "./capsules/envs.ts";
import { Idle } from "./capsules/idle.ts";
import { InjectValues } from "./capsules/inject-values.ts";
import { CapsuleLocks } from "./capsules/locks.ts";
import { type MemoryPauseOutcome, MemoryWatch } from "./capsules/memory-watch.ts";
import { Metrics } from "./capsules/metrics/metrics.ts";
import { NetworkCounters } from "./capsules/network-counters.ts";
import { NetworkDecisions } from "./capsules/network-decisions.ts";
import { Networks } from "./capsules/networks.ts";
import { Orphans } from "./capsules/orphans.ts";
import type { Outbound } from "./capsules/outbound.ts";
import { type Ownership, singleHost } from "./capsules/ownership.ts";
import { DiskUse, type QuotaLimits, Quotas } from "./capsules/quotas.ts";
import { Reconciler } from "./capsules/reconciler.ts";
import { recover } from "./capsules/recovery.ts";
import { Runs } from "./capsules/runs.ts";
import { ServicePauses } from "./capsules/service-pauses.ts";
import { CapsuleStore } from "./capsules/store.ts";
import { type Observe, Transitions } from "./capsules/transitions.ts";
import { AuditRows } from "./db/audit-rows.ts";
import { CapsuleRows } from "./db/capsule-rows.ts";
import type { Database } from "./db/database.ts";
import { DeadlineRows } from "./db/deadline-rows.ts";
import { DecisionRows } from "./db/decision-rows.ts";
import { IdempotencyRows } from "./db/idempotency-rows.ts";
import { InjectRows } from "./db/inject-rows.ts";
import { MetricRows } from "./db/metric-rows.ts";
import { NetworkRows } from "./db/network-rows.ts";
import { PortRows } from "./db/port-rows.ts";
import { TeamRows } from "./db/team-rows.ts";
import { TemplateRows } from "./db/template-rows.ts";
import type { Host } from "./host/host.ts";
import type { Step } from "./host/steps.ts";
import type { Log } from "./log.ts";
import type { NetworkRules } from "./network/grants.ts";
import type { SecretKey } from "./secret.ts";
import { Audit } from "./teams/audit.ts";
import { Idempotency } from "./teams/idempotency.ts";
import { auditOfService } from "./teams/service-audit.ts";
import { Teams } from "./teams/teams.ts";
import { RetiredTemplates } from "./templates/retired-templates.ts";
import { Templates } from "./templates/templates.ts";
import type { CapsuleStatus } from "./wire/capsule.ts";

export interface RecordsOptions {
  database: Database;
  secret: SecretKey;
  clock: Clock;
  log: Log;
  auditEntriesMax: number;
  auditKeepMs: number;
}

export type Records = ReturnType<typeof openRecords>;

/** The tables of the database, with what needs nothing else. */
export function openRecords({ database, secret, clock, log, auditEntriesMax, auditKeepMs }: RecordsOptions) {
  const now = () => clock.now();
  const capsuleRows = new CapsuleRows(database);
  const auditRows = new AuditRows(database);
  const audit = new Audit({
    ...{ rows: auditRows, clock },
    entriesMax: auditEntriesMax,
    keepMs: auditKeepMs,
    onLoss: (entries) => log.error({ entries }, "audit entries were lost: the database cannot be written"),
  });
  return {
    database,
    secret,
    ...{ capsuleRows, auditRows },
    deadlineRows: new DeadlineRows(database),
    metricRows: new MetricRows(database),
    portRows: new PortRows(database),
    injectRows: new InjectRows(database),
    networkCounters: new NetworkCounters(new NetworkRows(database)),
    networkDecisions: new NetworkDecisions(new DecisionRows(database)),
    templateRows: new TemplateRows(database),
    store: new CapsuleStore(capsuleRows, now),
    teams: new Teams(new TeamRows(database), clock),
    audit,
    idempotency: new Idempotency(new IdempotencyRows(database), secret, now),
  };
}

export interface Observers {
  observe: Observe;
  /** Called when a command was sent; the returned function at its end. */
  observeExec: (id: string) => () => void;
  /** Called at each change that a team can see; `removed`: the capsule is gone. */
  onStatus: (status: CapsuleStatus | "removed") => void;
  /** Called when a create has been admitted; whether a warm capsule was ready for it. */
  onCreateBegan: (isWarm: boolean) => void;
  /** Called when a new capsule runs; seconds since its create was admitted. */
  onCreated: (seconds: number) => void;
  /** Called after each pause for lack of memory. */
  onMemoryPause: (outcome: MemoryPauseOutcome) => void;
}

/** Longer than a folder can be there without its row: the reconciler settles such a folder within two of its passes. */
const explainedMs = 90 * 86_400_000;

export interface ServiceOptions {
  records: Records;
  host: Host;
  clock: Clock;
  log: Log;
  step: Step;
  quotas: QuotaLimits;
  /** The operator's, for the networks of capsules. */
  rules: NetworkRules;
  outbound: Outbound;
  /** The host's memory without the reserve. */
  capacityBytes: number;
  observers: Observers;
  /** Default: this host holds every capsule. */
  ownership?: Ownership | undefined;
}

export function buildService(options: ServiceOptions) {
  const { records, host, clock, log, step, observers, ownership = singleHost } = options;
  const { database, capsuleRows, templateRows, store } = records;
  const { onPaused, onResumed, onDestroyed, onEnded } = auditOfService(records.audit);
  const locks = new CapsuleLocks();
  const runs = new Runs();
  const adoptions = new Adoptions(clock);
  const activity = new Activity(capsuleRows, clock);
  const decisions = new Decisions();
  const { quotas, disk, diskUse } = buildLimits(options, runs);
  const { promised } = quotas;
  const retired = new RetiredTemplates({ rows: templateRows, capsuleRows, host, clock, log, promised });
  const onFreed = () => retired.collect();
  const transitions = new Transitions({
    ...{ store, host, locks, runs, adoptions, activity, clock, log, step, onFreed },
    observe: observers.observe,
    beforeRun: (teamId, guest) => disk.beforeRun(teamId, guest),
    shareOf: (owner) => ({ owner, isOverQuota: quotas.isOverDisk(owner), sharers: store.liveTeams() }),
  });
  const { observeExec, onCreateBegan, onCreated } = observers;
  const metrics = new Metrics({ rows: records.metricRows, capsuleRows, store, runs, clock, log, onCreated });
  const autoResumes = new AutoResumes({
    ...{ store, clock, onResumed },
    resume: (teamId, id) => capsules.resume(teamId, id),
  });
  const capsules: Capsules = new Capsules({
    ...{ store, host, locks, runs, adoptions, activity, clock, transitions, quotas, disk },
    ...{ ownership, decisions, onFreed },
    envs: new Envs(store, runs, records.secret),
    ...{ autoResumes, metrics, networks: buildNetworks(options, runs) },
    templates: templateRows,
    ...{ observeExec, onCreateBegan },
  });
  const pauses = new ServicePauses({ store, locks, transitions, ownership, decisions, onPaused, onDestroyed });
  store.onTrigger(onEnded);
  capsules.onChange((_teamId, _id, view) => observers.onStatus(view?.status ?? "removed"));
  const deadlines = applyPolicies(options, { runs, activity, adoptions, decisions, pauses });
  runs.apply(metrics);
  const memoryWatch = new MemoryWatch({
    ...{ host, store, clock, log },
    pause: (id) => pauses.forMemory(id),
    end: (id, reason) => transitions.endVm(id, reason),
    capacityBytes: options.capacityBytes,
    onPause: observers.onMemoryPause,
  });
  const templates = new Templates({
    ...{ database, capsuleRows, capsules, quotas, retired, host, clock, step },
    rows: templateRows,
  });
  const orphans = new Orphans({ store, templates: templateRows, host, log, promised, ownership });
  const captures = new Captures({ store, templates: templateRows, host, transitions, ownership, decisions, onFreed });
  const reconciler = new Reconciler({
    ...{ store, host, locks, runs, adoptions, transitions, log, orphans, captures },
    forget: () => forget(options),
  });
  return {
    ...records,
    ...{ host, locks, runs, adoptions, activity, diskUse, disk, transitions, capsules, pauses, autoResumes, metrics },
    ...{ retired, templates, memoryWatch, reconciler, decisions, captures, promised },
    /** Makes rows, VMs and folders agree, but for guests whose agents are still waited for. Call before any other change. */
    async recover() {
      fillDiskSizes({ capsuleRows, templateRows, host });
      for (const each of [metrics, records.networkDecisions]) each.open();
      deadlines.hold();
      const recovered = await recover({ store, host, locks, adoptions, transitions, clock, log, orphans, captures });
      deadlines.release();
      return recovered;
    },
  };
}

/** Records of what is explained no longer, and answers of old requests. */
function forget({ records, host }: ServiceOptions): void {
  const { audit, templateRows, capsuleRows, idempotency } = records;
  const time = audit.trustedTime();
  if (time !== undefined) templateRows.forgetNoted(time - explainedMs);
  capsuleRows.forgetTombstones((time ?? 0) - explainedMs, host.inventory().capsules);
  idempotency.forget();
}

function buildNetworks({ records, host, rules, outbound, step }: ServiceOptions, runs: Runs): Networks {
  const { portRows: rows, networkCounters: counters, networkDecisions: decisions, store } = records;
  const injectValues = new InjectValues(records.injectRows, records.secret);
  const networks = new Networks({ rows, store, host, runs, rules, counters, decisions, injectValues, outbound, step });
  runs.observe(networks);
  return networks;
}

interface PolicyParts {
  runs: Runs;
  activity: Activity;
  adoptions: Adoptions;
  decisions: Decisions;
  pauses: ServicePauses;
}

/** The rules by which the service changes capsules by itself. */
function applyPolicies(
  { records: { store, deadlineRows: rows }, clock, log }: ServiceOptions,
  { runs, activity, adoptions, decisions, pauses }: PolicyParts,
): Deadlines {
  const idle = new Idle(clock, activity, (id) => deadlines.inactive(id));
  const deadlines: Deadlines = new Deadlines({
    ...{ store, rows, idle, adoptions, decisions, clock, log },
    act: (row, action, cause) => pauses.atDeadline(row, action, cause),
  });
  runs.apply(idle);
  runs.apply(deadlines);
  return deadlines;
}

/** The bounds of teams: quotas, and the rate of writes to the disk. */
function buildLimits({ records, host, clock, log, quotas: limits }: ServiceOptions, runs: Runs) {
  const { capsuleRows, templateRows, store, audit } = records;
  const diskUse = new DiskUse({
    ids: () => [...capsuleRows.teams().keys()], // not the rows: labels are large
    measure: (id) => host.diskBytes(id),
  });
  const quotas = new Quotas({
    rows: capsuleRows,
    templates: templateRows,
    limits,
    diskOf: (id) => diskUse.of(id),
    runningMemoryMb: () => store.runningMemoryMb(),
  });
  const disk = new DiskLimiter({
    rows: capsuleRows,
    guests: () => runs.guests(),
    diskUse,
    usedBytes: (teamId) => quotas.usage(teamId).diskBytes,
    quotaBytes: limits.diskBytes,
    space: host.space,
    onChange: auditOfService(audit).onDiskShortage,
    ...{ clock, log },
  });
  return { quotas, disk, diskUse };
}
