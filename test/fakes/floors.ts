/** The floors from the database up to capsules and templates, joined as the daemon joins them, on a fake host. */
import { Activity } from "../../src/capsules/activity.ts";
import { Capsules } from "../../src/capsules/capsules.ts";
import type { Clock } from "../../src/capsules/clock.ts";
import { Idle } from "../../src/capsules/idle.ts";
import { CapsuleLocks } from "../../src/capsules/locks.ts";
import { type QuotaLimits, Quotas } from "../../src/capsules/quotas.ts";
import { Reconciler } from "../../src/capsules/reconciler.ts";
import { recover } from "../../src/capsules/recovery.ts";
import { Runs } from "../../src/capsules/runs.ts";
import { CapsuleStore } from "../../src/capsules/store.ts";
import { type Log, type Observe, Transitions } from "../../src/capsules/transitions.ts";
import { AuditRows } from "../../src/db/audit-rows.ts";
import { CapsuleRows } from "../../src/db/capsule-rows.ts";
import { type Database, openDatabase } from "../../src/db/database.ts";
import { TeamRows } from "../../src/db/team-rows.ts";
import { TemplateRows } from "../../src/db/template-rows.ts";
import type { Guest } from "../../src/host/host.ts";
import { Audit } from "../../src/teams/audit.ts";
import { auditOfService } from "../../src/teams/service-audit.ts";
import { Teams } from "../../src/teams/teams.ts";
import { Templates } from "../../src/templates/templates.ts";
import { FakeHost } from "./fake-host.ts";

/** A clock that moves only when told to; its wall clock can be set apart from its ticks. */
export class FakeClock implements Clock {
  #ticks = 0;
  #aheadMs = 1_000_000;
  #timers: { at: number; callback: () => void }[] = [];

  now(): number {
    return this.#ticks + this.#aheadMs;
  }

  ticks(): number {
    return this.#ticks;
  }

  /** What an operator or NTP does to the wall clock; no time passes. */
  step(ms: number): void {
    this.#aheadMs += ms;
  }

  after(ms: number, callback: () => void): () => void {
    const timer = { at: this.#ticks + ms, callback };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  }

  advance(ms: number): void {
    this.#ticks += ms;
    const due = this.#timers.filter((timer) => timer.at <= this.#ticks).sort((a, b) => a.at - b.at);
    this.#timers = this.#timers.filter((timer) => timer.at > this.#ticks);
    for (const timer of due) timer.callback();
  }
}

const step = () => {};

export interface Observers {
  observe: Observe;
  observeExec: (id: string) => () => void;
}
const unobserved: Observers = { observe: (_operation, _id, work) => work(), observeExec: () => () => {} };
const silent = { info() {}, warn() {}, error() {} };

/** Of every capsule. */
const diskBytesEach = 1_000;
export const roomy: QuotaLimits = {
  capsules: 1_000,
  starts: 1_000,
  runningVcpus: 1_000,
  runningMemoryMb: 1_000_000,
  diskBytes: 2 ** 40,
  templates: 1_000,
  hostMemoryMb: 1_000_000,
};

export function buildFloors(
  host = new FakeHost(),
  database: Database = openDatabase(":memory:"),
  clock = new FakeClock(),
  quotaLimits = roomy,
  log: Log = silent,
  { observe, observeExec }: Observers = unobserved,
) {
  const rows = new CapsuleRows(database);
  const templateRows = new TemplateRows(database);
  const teams = new Teams(new TeamRows(database), () => clock.now());
  const store = new CapsuleStore(rows, () => clock.now());
  const locks = new CapsuleLocks();
  const activity = new Activity(rows, clock);
  const runs = new Runs();
  const onFreed = () => templates.collect();
  const disk = { requireWritable() {}, beforeRun: async (_teamId: string, _guest: Guest): Promise<void> => {} };
  const beforeRun: typeof disk.beforeRun = (teamId, guest) => disk.beforeRun(teamId, guest);
  const below = { store, host, locks, runs, activity, clock, log };
  const transitions = new Transitions({ ...below, step, observe, beforeRun, onFreed });
  const quotas = new Quotas({
    rows,
    templates: templateRows,
    limits: quotaLimits,
    diskOf: () => diskBytesEach,
    runningMemoryMb: () => store.runningMemoryMb(),
  });
  const auditRows = new AuditRows(database);
  const audit = new Audit({ rows: auditRows, now: () => clock.now(), entriesMax: 1_000, keepMs: 1e9, onLoss() {} });
  const { onPaused, onEnded } = auditOfService(audit);
  const capsules = new Capsules({
    store,
    templates: templateRows,
    host,
    locks,
    transitions,
    runs,
    activity,
    clock,
    quotas,
    disk,
    observeExec,
    onPaused,
  });
  runs.apply(new Idle(clock, activity, (id) => capsules.expire(id)));
  capsules.onChange(onEnded);
  const templates = new Templates({
    database,
    rows: templateRows,
    capsuleRows: rows,
    capsules,
    quotas,
    host,
    now: () => clock.now(),
    step,
    log: silent,
  });
  /** Resolves when nothing is going on any more. */
  const settled = () => locks.settled();
  const storages = () => new Set(templateRows.all().map((row) => row.storage));
  const reconciler = new Reconciler({ store, host, locks, runs, transitions, log: silent, storages });
  const restart = () => recover({ store, host, transitions, log: silent, reconciler });
  const team = teams.ensure("blue").id;
  const other = teams.ensure("red").id;
  return {
    database,
    rows,
    templateRows,
    teams,
    audit,
    store,
    locks,
    activity,
    runs,
    transitions,
    capsules,
    templates,
    host,
    clock,
    disk,
    settled,
    restart,
    reconciler,
    team,
    other,
  };
}

export type Floors = ReturnType<typeof buildFloors>;

/** A running capsule of `floors.team`. */
export async function running(floors: Floors, timeoutSec = 0): Promise<string> {
  const { id } = await floors.capsules.create(floors.team, {
    template: "minimal",
    vcpus: 1,
    memoryMb: 512,
    timeoutSec,
  });
  await floors.settled();
  return id;
}

/** Starts a command in a capsule of `floors.team`; the returned function ends its use. */
export function beginExec(floors: Floors, id: string): () => Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const used = floors.capsules.use(floors.team, id, "exec", (agent) => {
    agent.run({ cmd: "hang", args: [] }, { output() {}, exited() {}, failed() {} });
    return promise;
  });
  return async () => {
    resolve();
    await used;
  };
}
